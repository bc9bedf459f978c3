"""Compressors that round elements to a few levels of the largest in their block."""

from collections.abc import Callable

import tensorflow as tf

from tfdp.compression import blocks as blocks_lib
from tfdp.compression.base import Compressor
from tfdp.compression.blocks import BlockCodec, checked_block_size
from tfdp.compression.exchanged import exchanged

# A scale is this much smaller than it could be, so that no rounding makes the largest finite number infinite.
MARGIN = 1 - 2.0**-20


def int8(*, block_size: int = 256) -> Compressor:
    """Returns the compressor that rounds to the nearest of 255 levels: a quarter of the bytes of float32.

    An element is off by at most 1/254 of the largest in its block. The error of a step has a bias: use it with
    `error_feedback`, or `qsgd`, which has none.

    Args:
        block_size: consecutive elements that share a scale of 4 bytes; a multiple of 32.

    Reference:
        Dettmers, "8-Bit Approximations for Parallelism in Deep Learning" (ICLR 2016), for 8-bit gradients; one linear
        scale a block instead of a tensor.
    """
    return exchanged(_nearest(8, checked_block_size(block_size)), name=f"int8(block_size={block_size})")


def int4(*, block_size: int = 256) -> Compressor:
    """Returns the compressor that rounds to the nearest of 15 levels: an eighth of the bytes of float32.

    An element is off by at most 1/14 of the largest in its block. See `int8`.

    Args:
        block_size: consecutive elements that share a scale of 4 bytes; a multiple of 32.
    """
    return exchanged(_nearest(4, checked_block_size(block_size)), name=f"int4(block_size={block_size})")


def qsgd(*, bits: int = 4, block_size: int = 256) -> Compressor:
    """Returns the compressor that rounds up or down by chance, so that what arrives is right on average.

    Both the members' messages and, among three and more, the sum that is encoded again are unbiased. Random numbers
    follow from the step, the name of the gradients and the member's rank.

    Args:
        bits: of an element, 8 (255 levels) or 4 (15 levels).
        block_size: consecutive elements that share a scale of 4 bytes; a multiple of 32.

    Reference:
        Alistarh et al., "QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding" (NeurIPS 2017),
        section 3.1, with the largest magnitude for the norm (section 4) and codes of one length.
    """
    if isinstance(bits, float) or bits not in (4, 8):
        raise ValueError(f"`bits` must be 4 or 8. Received: bits={bits!r}.")
    levels = _levels(bits)

    def quantize(divided: tf.Tensor, random: tf.Tensor | None) -> tf.Tensor:
        return _offset(tf.floor(divided + random), levels)

    codec = BlockCodec(bits, checked_block_size(block_size), _largest(levels), quantize, _centred(levels), True, levels)
    return exchanged(codec, name=f"qsgd(bits={bits}, block_size={block_size})")


def tern_grad(*, block_size: int = 1024) -> Compressor:
    """Returns the compressor that sends -1, 0 or 1 times the largest magnitude of a block, right on average: 2 bits.

    Random numbers are as in `qsgd`. The paper's clipping at 2.5 standard deviations, which has a bias, is left out.

    Args:
        block_size: consecutive elements that share a scale of 4 bytes; a multiple of 32.

    Reference:
        Wen et al., "TernGrad: Ternary Gradients to Reduce Communication in Distributed Deep Learning" (NeurIPS 2017),
        section 3.1.
    """

    def quantize(divided: tf.Tensor, random: tf.Tensor | None) -> tf.Tensor:
        return _offset(tf.floor(divided + random), 1)

    codec = BlockCodec(2, checked_block_size(block_size), _largest(1), quantize, _centred(1), True, 1)
    return exchanged(codec, name=f"tern_grad(block_size={block_size})")


def natural(*, block_size: int = 1024) -> Compressor:
    """Returns the compressor that rounds to one of the two next powers of two, right on average: 8 bits.

    A sign and 7 bits of exponent, relative to the block's largest magnitude. The relative error of an element has at
    most a variance of 1/8, however small it is beside the others, down to 2^-126 of the largest.

    Args:
        block_size: consecutive elements that share a scale of 4 bytes; a multiple of 32.

    Reference:
        Horvath et al., "Natural Compression for Distributed Deep Learning" (MSML 2022), section 2.
    """
    codec = BlockCodec(8, checked_block_size(block_size), _power_above, _to_powers, _from_powers, True, 1)
    return exchanged(codec, name=f"natural(block_size={block_size})")


def _levels(bits: int) -> int:
    return 2 ** (bits - 1) - 1


def _nearest(bits: int, block_size: int) -> BlockCodec:
    levels = _levels(bits)

    def quantize(divided: tf.Tensor, random: tf.Tensor | None) -> tf.Tensor:
        del random
        return _offset(tf.round(divided), levels)

    return BlockCodec(bits, block_size, _largest(levels), quantize, _centred(levels), False, levels)


def _largest(levels: int) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    def scale(blocks: tf.Tensor, filled: tf.Tensor) -> tf.Tensor:
        del filled
        return blocks_lib.largest_magnitudes(blocks) * tf.cast(MARGIN / levels, blocks.dtype)

    return scale


def _offset(numbers: tf.Tensor, levels: int) -> tf.Tensor:
    """Returns whole numbers as codes: level -levels as 1, 0 as levels + 1."""
    return tf.cast(tf.clip_by_value(numbers, -levels, levels) + (levels + 1), tf.uint8)


def _centred(levels: int) -> Callable[[tf.Tensor, tf.DType], tf.Tensor]:
    def dequantize(codes: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
        return tf.cast(codes, dtype) - (levels + 1)

    return dequantize


# Powers of two: bit 7 is the sign, bits 0 to 6 are 127 plus the exponent, or 0 for zero.


def _power_above(blocks: tf.Tensor, filled: tf.Tensor) -> tf.Tensor:
    """Returns the power of two that is the next to each block's largest magnitude, from above."""
    del filled
    largest = blocks_lib.largest_magnitudes(blocks)
    integer, mantissa = (tf.int64, 52) if blocks.dtype == tf.float64 else (tf.int32, 23)
    ones = tf.constant((1 << mantissa) - 1, integer)
    up = tf.bitwise.bitwise_and(tf.bitcast(largest, integer) + ones, tf.bitwise.invert(ones))
    power = tf.minimum(tf.bitcast(up, blocks.dtype), blocks.dtype.max)  # infinite above half of the largest number
    return tf.where(tf.math.is_finite(largest), power, largest)


def _to_powers(divided: tf.Tensor, random: tf.Tensor | None) -> tf.Tensor:
    magnitudes = tf.minimum(tf.abs(tf.cast(divided, tf.float32)), 1.0)
    bits = tf.bitcast(magnitudes, tf.int32)
    # The bits of a float, seen as an integer, grow evenly from one power of two to the next.
    # Less than 2^23 is added, whatever the dtype of `random`: a power of two, and zero, stay what they are.
    rounded_up = tf.bitwise.right_shift(bits + tf.cast(tf.multiply(random, 2.0**23), tf.int32), 23)
    return tf.cast(rounded_up, tf.uint8) | tf.where(divided < 0, tf.constant(128, tf.uint8), tf.constant(0, tf.uint8))


def _from_powers(codes: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    exponents = tf.cast(tf.bitwise.bitwise_and(codes, tf.constant(127, tf.uint8)), tf.int32)
    magnitudes = tf.bitcast(tf.bitwise.left_shift(exponents, 23), tf.float32)
    return tf.cast(tf.where(codes < 128, magnitudes, -magnitudes), dtype)
