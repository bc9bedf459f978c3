"""Compressors that send a shorter floating-point number."""

import tensorflow as tf

from tfdp.compression.base import Codec, Compressor
from tfdp.compression.summed import summed


def bf16() -> Compressor:
    """Returns the compressor that sends bfloat16: half the bytes of float32, its range, 8 bits of precision.

    The range needs no clamping in practice: only what lies within 0.4 % of float32's largest, 3.4e38, or beyond it
    (float64) becomes infinite.
    """
    return summed(Codec(_to_bfloat16, _from_bfloat16, tf.bfloat16), name="bf16()", sparse_dtype=tf.bfloat16)


def fp16() -> Compressor:
    """Returns the compressor that sends float16: half the bytes of float32, 11 bits of precision, a small range.

    A replica's share of the mean travels (its gradient divided by the number of replicas), so that no partial sum is
    larger than the largest gradient. A finite gradient beyond float16's largest, 65504 (a little less, so that no
    rounding of a partial sum overflows), is clamped to it; NaN and infinity pass. Shares below 3e-8 become zero.
    """
    return summed(Codec(_to_float16, _from_float16, tf.float16), name="fp16()", sparse_dtype=tf.float16)


def _to_bfloat16(gradient: tf.Tensor, num_members: int) -> tf.Tensor:
    del num_members
    return tf.cast(gradient, tf.bfloat16)


def _from_bfloat16(message: tf.Tensor, num_members: int, dtype: tf.DType) -> tf.Tensor:
    del num_members
    return tf.cast(message, dtype)


def _to_float16(gradient: tf.Tensor, num_members: int) -> tf.Tensor:
    share = gradient / tf.cast(num_members, gradient.dtype)
    largest = tf.constant(_largest_share(num_members), gradient.dtype)
    clamped = tf.clip_by_value(share, -largest, largest)
    return tf.cast(tf.where(tf.math.is_inf(share), share, clamped), tf.float16)


def _from_float16(message: tf.Tensor, num_members: int, dtype: tf.DType) -> tf.Tensor:
    return tf.cast(message, dtype) * tf.cast(num_members, dtype)


def _largest_share(num_members: int) -> float:
    """Returns the largest share that keeps the sum of `num_members` shares finite, each addition rounded up."""
    return tf.float16.max / (num_members * (1 + 2.0**-11) ** num_members)
