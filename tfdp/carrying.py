"""Dtypes that collectives carry, and how all others travel in them without loss."""

from collections.abc import Sequence

import tensorflow as tf

REDUCED = (tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int32, tf.int64)
GATHERED = (tf.float16, tf.float32, tf.float64, tf.int32, tf.int64)
BROADCAST = (tf.bool, *GATHERED)

_SMALL_INTEGERS = (tf.bool, tf.int8, tf.uint8, tf.int16, tf.uint16)
_SIGNED = {tf.uint32: tf.int32, tf.uint64: tf.int64}


def as_carried(tensor: tf.Tensor, carried: Sequence[tf.DType]) -> tf.Tensor:
    """Returns `tensor` in one of the dtypes that are `carried`; complex numbers as pairs in a last axis of their own.

    Raises:
        TypeError: a dtype that none of them holds without loss, such as string.
    """
    dtype = tensor.dtype
    if dtype in carried:
        return tensor
    if dtype.is_complex:
        pairs = tf.stack([tf.math.real(tensor), tf.math.imag(tensor)], axis=-1)
        return as_carried(pairs, carried)
    if dtype in _SMALL_INTEGERS:
        return tf.cast(tensor, tf.int32)
    if dtype in _SIGNED:
        return tf.bitcast(tensor, _SIGNED[dtype])
    if dtype.is_floating and dtype.size <= 2:
        return tf.cast(tensor, tf.float32)
    raise TypeError(
        f"Replicas of several workers can exchange numbers and booleans. Received: a tensor of {dtype.name}."
    )


def from_carried(tensor: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Returns what `as_carried` made of a tensor of `dtype` in that dtype."""
    if tensor.dtype == dtype:
        return tensor
    if dtype.is_complex:
        return tf.complex(tensor[..., 0], tensor[..., 1])
    return tf.bitcast(tensor, dtype) if dtype in _SIGNED else tf.cast(tensor, dtype)
