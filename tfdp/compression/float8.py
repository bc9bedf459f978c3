"""Compressors that send 8-bit floating-point numbers."""

import tensorflow as tf

from tfdp.compression import blocks as blocks_lib
from tfdp.compression.base import Compressor
from tfdp.compression.blocks import BlockCodec, checked_block_size
from tfdp.compression.exchanged import exchanged
from tfdp.compression.quantizing import MARGIN

_LARGEST_E4M3, _LARGEST_E5M2 = 448.0, 57344.0


def e4m3(*, block_size: int = 256) -> Compressor:
    """Returns the compressor that sends 8-bit floats with 4 bits of exponent and 3 of mantissa: errors of at most 1/16.

    Each block is scaled so that its largest magnitude is the largest that the type has; what is 2^18 times smaller
    becomes zero. Relative errors suit gradients of many magnitudes better than `int8`, whose errors are absolute.

    Args:
        block_size: consecutive elements that share a scale of 4 bytes; a multiple of 32.

    Reference:
        Micikevicius et al., "FP8 Formats for Deep Learning" (2022), section 3.
    """
    return _float8("e4m3", 3, 7, _LARGEST_E4M3, block_size)


def e5m2(*, block_size: int = 256) -> Compressor:
    """Returns the compressor that sends 8-bit floats with 5 bits of exponent and 2 of mantissa: errors of at most 1/8.

    As `e4m3`, with a larger range: what is 2^32 times smaller than the largest of its block becomes zero.

    Args:
        block_size: consecutive elements that share a scale of 4 bytes; a multiple of 32.
    """
    return _float8("e5m2", 2, 15, _LARGEST_E5M2, block_size)


def _float8(name: str, mantissa_bits: int, bias: int, largest: float, block_size: int) -> Compressor:
    """Returns the compressor of a type, whose codes are made from float32: TensorFlow does not show those it has."""
    dropped = 23 - mantissa_bits
    smallest_normal = 2.0 ** (1 - bias)
    steps_per_one = 2.0 ** (bias - 1 + mantissa_bits)  # below the smallest normal number all steps are as long
    rebased = (127 - bias) << mantissa_bits

    def scale(blocks: tf.Tensor, filled: tf.Tensor) -> tf.Tensor:
        del filled
        return blocks_lib.largest_magnitudes(blocks) * (MARGIN / largest)

    def quantize(divided: tf.Tensor, random: tf.Tensor | None) -> tf.Tensor:
        del random
        magnitudes = tf.minimum(tf.abs(tf.cast(divided, tf.float32)), largest)
        bits = tf.bitcast(magnitudes, tf.int32)
        is_odd = tf.bitwise.bitwise_and(tf.bitwise.right_shift(bits, dropped), 1)
        half = (1 << (dropped - 1)) - 1
        normal = tf.bitwise.right_shift(bits + half + is_odd, dropped) - rebased  # to the nearest, ties to even
        small = tf.cast(tf.round(magnitudes * steps_per_one), tf.int32)
        codes = tf.where(magnitudes < smallest_normal, small, normal)
        return tf.cast(codes + tf.where(divided < 0, 128, 0), tf.uint8)

    def dequantize(codes: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
        magnitudes = tf.cast(tf.bitwise.bitwise_and(codes, tf.constant(127, tf.uint8)), tf.int32)
        normal = tf.bitcast(tf.bitwise.left_shift(magnitudes + rebased, dropped), tf.float32)
        small = tf.cast(magnitudes, tf.float32) * (1 / steps_per_one)
        values = tf.where(magnitudes < (1 << mantissa_bits), small, normal)
        return tf.cast(tf.where(codes < 128, values, -values), dtype)

    codec = BlockCodec(8, checked_block_size(block_size), scale, quantize, dequantize, False, largest)
    return exchanged(codec, name=f"{name}(block_size={block_size})")
