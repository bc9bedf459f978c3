"""Block codes: a gradient as short numbers, with one scale for each block of consecutive elements."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfdp import words as words_lib

_SMALLEST_SCALE = 2.0**-126  # smaller ones are denormal, which processors may flush to zero
_LARGEST_SCALES = {tf.float32: 2.0**126, tf.float64: 2.0**1022}  # of larger ones, the reciprocals are denormal


class BlockCodec(NamedTuple):
    """How the elements of a block become codes of a few bits.

    Attributes:
        bits: of a code: 1, 2, 4 or 8.
        block_size: elements that share a scale; a multiple of 32.
        scale: (blocks float [num_blocks, block_size], float [num_blocks, 1] how many elements of each are no padding)
            -> float [num_blocks, 1] what an element is divided by.
        quantize: (divided elements, uniform random numbers in [0, 1) or None) -> uint8 codes in the same shape.
        dequantize: (codes, float dtype) -> what they stand for, to be multiplied by the scale.
        is_stochastic: whether `quantize` wants random numbers.
        symbol_of_infinity: what stands for an infinite or undefined element: the largest number that has a code.
        is_relative: whether codes depend on the scale; if not, `quantize` is given the elements as they are.
    """

    bits: int
    block_size: int
    scale: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
    quantize: Callable[[tf.Tensor, tf.Tensor | None], tf.Tensor]
    dequantize: Callable[[tf.Tensor, tf.DType], tf.Tensor]
    is_stochastic: bool
    symbol_of_infinity: float
    is_relative: bool = True

    @property
    def words_per_block(self) -> int:
        """Words, of 4 bytes each, of the codes of one block."""
        return self.block_size * self.bits // 32


class Encoded(NamedTuple):
    """Blocks as they travel.

    Attributes:
        codes: uint8 [num_blocks, block_size * bits / 8].
        scales: float [num_blocks, 1].
    """

    codes: tf.Tensor
    scales: tf.Tensor


def checked_block_size(block_size: int) -> int:
    """Returns `block_size`, or raises what is wrong with it."""
    if isinstance(block_size, bool) or not isinstance(block_size, int | np.integer):
        raise TypeError(f"`block_size` must be an integer. Received: block_size={block_size!r}.")
    if block_size < 32 or block_size % 32:
        raise ValueError(f"`block_size` must be a positive multiple of 32. Received: block_size={block_size}.")
    return int(block_size)


def num_blocks(shapes: Sequence[tf.TensorShape], block_size: int, multiple: int) -> int:
    """Returns the number of blocks of tensors of these shapes, rounded up to a multiple."""
    return -(-sum(-(-(shape.num_elements() or 0) // block_size) for shape in shapes) // multiple) * multiple


def num_filled(shapes: Sequence[tf.TensorShape], block_size: int, multiple: int) -> np.ndarray:
    """Returns how many elements of each block are not padding, int [num_blocks]."""
    filled: list[int] = []
    for shape in shapes:
        whole, rest = divmod(shape.num_elements() or 0, block_size)
        filled += [block_size] * whole + [rest] * (rest > 0)
    return np.asarray(filled + [0] * (num_blocks(shapes, block_size, multiple) - len(filled)), np.int32)


def without_padding(blocks: tf.Tensor, filled: np.ndarray) -> tf.Tensor:
    """Returns blocks with zeros for padding, which codes without a zero do not keep."""
    if np.all(filled == blocks.shape[1]):
        return blocks
    is_padding = tf.range(blocks.shape[1])[tf.newaxis, :] >= filled[:, np.newaxis]
    return tf.where(is_padding, tf.zeros([], blocks.dtype), blocks)


def as_blocks(tensors: Sequence[tf.Tensor], block_size: int, multiple: int) -> tf.Tensor:
    """Returns [num_blocks, block_size]: each tensor begins a block, and zeros fill its last.

    Args:
        tensors: of one dtype and of static shapes.
        block_size: elements of a block.
        multiple: of which the number of blocks is one, with blocks of zeros at the end.
    """
    parts = [_filled(tf.reshape(tensor, [-1]), block_size) for tensor in tensors]
    missing = num_blocks([t.shape for t in tensors], block_size, multiple) - sum(part.shape[0] for part in parts)
    if missing:
        parts.append(tf.zeros([missing, block_size], parts[0].dtype))
    return parts[0] if len(parts) == 1 else tf.concat(parts, axis=0)


def from_blocks(blocks: tf.Tensor, shapes: Sequence[tf.TensorShape]) -> list[tf.Tensor]:
    """Returns the tensors that `as_blocks` was given, by their shapes."""
    tensors, begin = [], 0
    for shape in shapes:
        size = int(shape.num_elements())
        end = begin + -(-size // blocks.shape[1])
        tensors.append(tf.reshape(tf.reshape(blocks[begin:end], [-1])[:size], shape))
        begin = end
    return tensors


def random_numbers(num_blocks: int, block_size: int, seed: tf.Tensor) -> tf.Tensor:
    """Returns uint16 [num_blocks, block_size] that follow from `seed`, int32 [2]: as fine as rounding needs.

    Not within a kernel: XLA takes a hundred times as long on CPUs.
    """
    bits = tf.random.stateless_uniform([num_blocks, block_size // 2], seed, None, None, tf.int32)
    return tf.reshape(tf.bitcast(bits, tf.uint16), [num_blocks, block_size])


def largest_magnitudes(blocks: tf.Tensor) -> tf.Tensor:
    """Returns the largest magnitude of each block [num_blocks, 1]: NaN where there is one, else infinity."""
    lanes = _lanes(tf.abs(blocks))
    largest = tf.reduce_max(tf.reduce_max(lanes, axis=1), axis=1, keepdims=True)
    sums = tf.reduce_sum(tf.reduce_sum(lanes, axis=1), axis=1, keepdims=True)
    return tf.where(tf.math.is_nan(sums), sums, largest)  # XLA's maximum may pass over NaN, a sum does not


def mean_magnitudes(blocks: tf.Tensor, filled: tf.Tensor) -> tf.Tensor:
    """Returns the mean magnitude of the first `filled` elements of each block, both [num_blocks, 1]."""
    size = blocks.shape[1]
    shares = tf.linalg.matvec(tf.abs(blocks), tf.fill([size], tf.constant(1 / size, blocks.dtype)))  # never overflow
    return shares[:, tf.newaxis] * (size / filled)


def encode(
    codec: BlockCodec, blocks: tf.Tensor, filled: np.ndarray, random: tf.Tensor | None
) -> tuple[Encoded, tf.Tensor]:
    """Returns the code of blocks, and what it stands for.

    A finite element beside one that is not becomes zero, so that those alone arrive as what they are: where any element
    of a block is NaN, as NaN. Codes without a zero (signs) take the whole block with them.

    Args:
        codec: which code.
        blocks: float32 or float64 [num_blocks, block_size], with zeros for padding.
        filled: how many elements of each block are not padding, int [num_blocks].
        random: uint16 in the shape of the blocks, for a codec that is stochastic; see `random_numbers`.
    """
    scales = codec.scale(blocks, tf.constant(np.maximum(filled, 1)[:, np.newaxis], blocks.dtype))
    largest_scale = tf.constant(_LARGEST_SCALES[blocks.dtype], blocks.dtype)
    scales = tf.where(tf.math.is_finite(scales), tf.minimum(scales, largest_scale), scales)
    usable = tf.math.is_finite(scales) & (scales >= _SMALLEST_SCALE)
    one = tf.ones([], blocks.dtype)
    reciprocals = tf.where(usable, one / tf.where(usable, scales, one), tf.zeros([], blocks.dtype))
    divided = blocks * reciprocals  # of infinity, by a zero: NaN
    largest = tf.cast(codec.symbol_of_infinity, blocks.dtype)
    divided = tf.where(tf.math.is_nan(divided), tf.where(blocks < 0, -largest, largest), divided)
    if not codec.is_relative:
        divided = blocks
    uniform = None if random is None else (tf.cast(random, blocks.dtype) + 0.5) * 2.0**-16
    codes = codec.quantize(divided, uniform)
    return Encoded(_packed(codes, codec.bits), scales), _scaled(codec.dequantize(codes, blocks.dtype), scales)


def decode(codec: BlockCodec, encoded: Encoded) -> tf.Tensor:
    """Returns the blocks, in the dtype of the scales."""
    codes = _unpacked(encoded.codes, codec.bits, codec.block_size)
    return _scaled(codec.dequantize(codes, encoded.scales.dtype), encoded.scales)


def as_words(encoded: Encoded, num_rows: int) -> tf.Tensor:
    """Returns the message of encoded blocks, float32 [num_rows, words]: as many blocks in each row."""
    codes = encoded.codes.shape.num_elements() // num_rows
    scales = encoded.scales.shape.num_elements() // num_rows
    return tf.concat(
        [
            words_lib.as_words(tf.reshape(encoded.codes, [num_rows, codes])),
            words_lib.as_words(tf.reshape(encoded.scales, [num_rows, scales])),
        ],
        axis=1,
    )


def from_words(codec: BlockCodec, words: tf.Tensor, dtype: tf.DType) -> Encoded:
    """Returns the encoded blocks of a message: of row 0, then of row 1.

    Args:
        codec: which code.
        words: float32 [num_rows, words].
        dtype: of the scales.
    """
    blocks_per_row = words.shape[1] // (codec.words_per_block + dtype.size // 4)
    num_codes = blocks_per_row * codec.words_per_block
    codes = words_lib.from_words(words[:, :num_codes], tf.uint8)
    scales = words_lib.from_words(words[:, num_codes:], dtype)
    return Encoded(tf.reshape(codes, [-1, codec.words_per_block * 4]), tf.reshape(scales, [-1, 1]))


def _lanes(blocks: tf.Tensor) -> tf.Tensor:
    """Returns [num_blocks, n, 16]: a reduction over the middle runs over vectors."""
    return tf.reshape(blocks, [blocks.shape[0], -1, 16])


def _filled(flat: tf.Tensor, block_size: int) -> tf.Tensor:
    missing = -flat.shape[0] % block_size
    return tf.reshape(tf.pad(flat, [[0, missing]]) if missing else flat, [-1, block_size])


def _scaled(values: tf.Tensor, scales: tf.Tensor) -> tf.Tensor:
    zero = tf.zeros([], values.dtype)
    return tf.where(tf.equal(values, zero), zero, values * scales)  # zero times an infinite scale is zero here


def _packed(codes: tf.Tensor, bits: int) -> tf.Tensor:
    """Returns codes [n, block_size] as bytes [n, width]: byte i holds codes i, i + width, i + 2 width .."""
    width = codes.shape[1] * bits // 8
    packed = codes[:, :width]
    for index in range(1, 8 // bits):
        plane = codes[:, index * width : (index + 1) * width]
        packed |= tf.bitwise.left_shift(plane, tf.constant(index * bits, tf.uint8))
    return packed


def _unpacked(packed: tf.Tensor, bits: int, block_size: int) -> tf.Tensor:
    if bits == 8:
        return packed
    shifts = tf.constant(list(range(0, 8, bits)), tf.uint8)[tf.newaxis, :, tf.newaxis]
    planes = tf.bitwise.right_shift(packed[:, tf.newaxis, :], shifts)
    return tf.reshape(tf.bitwise.bitwise_and(planes, tf.constant((1 << bits) - 1, tf.uint8)), [-1, block_size])
