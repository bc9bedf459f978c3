"""The compressor that sends one bit an element."""

import tensorflow as tf

from tfdp.compression.base import Compressor
from tfdp.compression.blocks import BlockCodec, checked_block_size, mean_magnitudes
from tfdp.compression.exchanged import exchanged


def sign(*, block_size: int = 1024) -> Compressor:
    """Returns the compressor that sends signs, eight a byte, and the mean magnitude of each block: 1/32 of float32.

    Use it with `error_feedback`: without, it need not converge (section 3 of the paper). A NaN or infinity takes its
    whole block with it.

    Args:
        block_size: consecutive elements that share a scale of 4 bytes; a multiple of 32.

    Reference:
        Karimireddy et al., "Error Feedback Fixes SignSGD and other Gradient Compression Schemes" (ICML 2019),
        algorithm 1, with a scale for each block instead of each layer.
    """
    codec = BlockCodec(
        1, checked_block_size(block_size), mean_magnitudes, _is_positive, _ones, False, 1, is_relative=False
    )
    return exchanged(codec, name=f"sign(block_size={block_size})")


def _is_positive(elements: tf.Tensor, random: tf.Tensor | None) -> tf.Tensor:
    del random
    return tf.cast(elements >= 0, tf.uint8)


def _ones(codes: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    return tf.cast(codes, dtype) * 2 - 1
