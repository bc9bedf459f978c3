"""Which elements of a gradient are sent: those of the largest magnitudes."""

import math

import numpy as np
import tensorflow as tf

from tfdp.compression.entries import Entries
from tfdp.compression.kernels import Kernels

_SMALLEST_SHARE_OF_A_SAMPLE = 0.01
_LEAST_EXPECTED_IN_A_SAMPLE = 128  # of the elements that are to be sent: more of them, a better estimate
_BLOCK_SIZE = 16  # of a hundredth of all elements, most blocks of this size have none
_MARGIN = 1.3  # the estimate takes so many for each that is to be sent, so that they seldom are too few


def checked_k(k: float) -> float:
    """Returns `k`, or raises what is wrong with it."""
    k = k.item() if isinstance(k, np.number) else k
    if isinstance(k, bool) or not isinstance(k, int | float):
        raise TypeError(f"`k` must be a share (float) or a count (int) of elements. Received: k={k!r}.")
    if isinstance(k, int) and k < 1:
        raise ValueError(f"`k` must be at least 1 where it is a count. Received: k={k}.")
    if isinstance(k, float) and not 0 < k <= 1:
        raise ValueError(f"`k` must be more than 0 and at most 1 where it is a share. Received: k={k}.")
    return k


def num_chosen(k: float, num_elements: int) -> int:
    """Returns how many of so many elements a share or a count means: at least one, where there is one."""
    return min(num_elements, k if isinstance(k, int) else max(1, round(k * num_elements)))


def magnitudes(tensor: tf.Tensor) -> tf.Tensor:
    """Returns magnitudes, infinite for NaN: so it is sent, to be seen by all."""
    return tf.where(tf.math.is_nan(tensor), tf.constant(math.inf, tensor.dtype), tf.abs(tensor))


def largest(tensor: tf.Tensor, k: int) -> Entries:
    """Returns the k elements of the largest magnitudes; of equal ones, the first.

    Args:
        tensor: float, of a static shape.
        k: at most as many as there are elements.
    """
    flat = tf.reshape(tensor, [-1])
    if k == flat.shape[0]:
        return Entries(flat, tf.range(k))
    indices = tf.math.top_k(magnitudes(flat), k, sorted=False).indices
    return Entries(tf.gather(flat, indices), indices)


def largest_by_sample(kernels: Kernels, tensor: tf.Tensor, k: int) -> Entries:
    """Returns about the k elements of the largest magnitudes, never more: a threshold is estimated from a sample.

    Several times as fast as `largest`: blocks of elements that are all small are passed over. Where fewer than k
    elements reach the threshold, empty entries fill the message. Tensors that a sample would be half of are looked at
    as a whole.

    Args:
        kernels: of the compressor.
        tensor: float, of a static shape.
        k: at most as many as there are elements.
    """
    flat = tf.reshape(tensor, [-1])
    stride = _stride(flat.shape[0], k)
    if stride == 1:
        return largest(tensor, k)
    sample = magnitudes(flat[::stride])
    num_above = math.ceil(_MARGIN * k / flat.shape[0] * sample.shape[0])
    threshold = tf.reduce_min(tf.math.top_k(sample, min(num_above, sample.shape[0]), sorted=False).values)
    # Zeros are not sent, nor what is denormal: processors may take it for zero.
    threshold = tf.maximum(threshold, tf.constant(_smallest_normal(flat.dtype), flat.dtype))
    candidates = _not_below(kernels, flat, threshold)
    ranked = tf.concat([magnitudes(candidates.values), tf.fill([k], tf.constant(-1, flat.dtype))], axis=0)
    chosen = tf.math.top_k(ranked, k, sorted=False).indices
    return Entries(*(tf.gather(tf.concat([part, tf.zeros([k], part.dtype)], axis=0), chosen) for part in candidates))


def _not_below(kernels: Kernels, flat: tf.Tensor, threshold: tf.Tensor) -> Entries:
    """Returns the elements whose magnitude is at least `threshold`, however many, and perhaps some of the last few."""
    size = flat.shape[0] // _BLOCK_SIZE * _BLOCK_SIZE

    def kernel(flat: tf.Tensor) -> tf.Tensor:
        return tf.reduce_max(tf.reshape(magnitudes(flat[:size]), [-1, _BLOCK_SIZE]), axis=1)

    rows = tf.where(kernels.compiled(kernel, "largest of blocks", flat)(flat) >= threshold)[:, 0]
    blocks = tf.gather(tf.reshape(flat[:size], [-1, _BLOCK_SIZE]), rows)
    places = tf.cast(tf.where(magnitudes(blocks) >= threshold), tf.int32)
    indices = tf.gather(tf.cast(rows, tf.int32) * _BLOCK_SIZE, places[:, 0]) + places[:, 1]
    return Entries(
        tf.concat([tf.gather_nd(blocks, places), flat[size:]], axis=0),
        tf.concat([indices, tf.range(size, flat.shape[0])], axis=0),
    )


def _stride(num_elements: int, k: int) -> int:
    """Returns the distance of the elements of a sample: prime to each axis, so that it meets all columns alike."""
    if k == num_elements:
        return 1
    least = max(num_elements * _SMALLEST_SHARE_OF_A_SAMPLE, _LEAST_EXPECTED_IN_A_SAMPLE * num_elements / k)
    strides = range(int(num_elements / least), 1, -1)
    return next((stride for stride in strides if math.gcd(stride, num_elements) == 1), 1)


def _smallest_normal(dtype: tf.DType) -> float:
    return 2.0**-1022 if dtype == tf.float64 else 2.0**-126
