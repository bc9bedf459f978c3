"""Elements that travel with their positions, and what is made of them."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfdp import words as words_lib
from tfdp.compression.base import Group, all_finite, wide
from tfdp.compression.kernels import Kernels


class Entries(NamedTuple):
    """Some elements of a gradient. An entry of value 0 is empty, whatever its index: it fills a message.

    Attributes:
        values: float [..., k].
        indices: int32 [..., k], in the flat gradient, or in all gradients of a message one behind the other. Those of
            entries that are not empty differ.
    """

    values: tf.Tensor
    indices: tf.Tensor


class Delivered(NamedTuple):
    """What has become of the entries of all members.

    Attributes:
        total: their sums, one dense tensor for each gradient.
        sent: those of this member as dense tensors.
        finite: whether all of `total` is finite.
    """

    total: list[tf.Tensor]
    sent: list[tf.Tensor]
    finite: tf.Tensor


def whole_gradients(gradients: Sequence[tf.Tensor], residuals: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Returns gradients plus residuals, in float32 (float64 for gradients of float64); () for the residuals is none."""
    dtype = wide(gradients[0].dtype)
    wholes = [tf.cast(gradient, dtype) for gradient in gradients]
    return [whole + residual for whole, residual in zip(wholes, residuals, strict=True)] if residuals else wholes


def joined(entries: Sequence[Entries], shapes: Sequence[tf.TensorShape]) -> Entries:
    """Returns the entries of several gradients as those of one that holds them one behind the other.

    Args:
        entries: of each gradient.
        shapes: of the gradients.

    Raises:
        ValueError: there are more elements than int32 can count.
    """
    begins = np.cumsum([0, *_sizes(shapes)])
    if begins[-1] >= 2**31:
        raise ValueError(
            f"The elements that are sent with their positions must be of less than 2**31. Received: {begins[-1]} "
            "elements. Choose another compressor for these variables, by `by_name`."
        )
    indices = [tf.cast(part.indices, tf.int32) + int(begin) for part, begin in zip(entries, begins[:-1], strict=True)]
    return Entries(tf.concat([part.values for part in entries], axis=0), tf.concat(indices, axis=0))


def deliver(
    kernels: Kernels,
    own: tf.Tensor,
    dtype: tf.DType,
    dtype_of_values: tf.DType,
    shapes: Sequence[tf.TensorShape],
    group: Group,
    *,
    name: str,
) -> Delivered:
    """Gathers the messages of all members and adds up their entries, in the order of the members.

    Args:
        kernels: of the compressor.
        own: the message of this member, from `as_message`; of the same size on all.
        dtype: of the gradients.
        dtype_of_values: float32 or float64, in which they are added.
        shapes: of the gradients.
        group: the members.
        name: what is reduced.
    """
    messages = tf.ensure_shape(group.gather(own, name=name), [group.size, own.shape[1]])
    total, finite = _sums(kernels, messages, dtype, dtype_of_values, shapes)
    sent, _ = _sums(kernels, own, dtype, dtype_of_values, shapes)
    return Delivered(total, sent, finite)


def as_message(entries: Entries) -> tf.Tensor:
    """Returns entries [k] as words, float32 [1, words]."""
    return tf.concat([words_lib.as_words(part[tf.newaxis, :]) for part in entries], axis=1)


def from_message(words: tf.Tensor, dtype: tf.DType) -> Entries:
    """Returns the entries of messages, [rows, k], with values of `dtype`."""
    words_of_values = words.shape[1] // (dtype.size // 4 + 1) * (dtype.size // 4)
    return Entries(
        words_lib.from_words(words[:, :words_of_values], dtype),
        words_lib.from_words(words[:, words_of_values:], tf.int32),
    )


def as_rows(entries: Entries) -> tf.Tensor:
    """Returns entries [k], however many, as words with an entry in each row, float32 [k, words of an entry]."""
    return tf.concat([words_lib.as_words(part[:, tf.newaxis]) for part in entries], axis=1)


def from_rows(words: tf.Tensor, dtype: tf.DType) -> Entries:
    """Returns the entries of rows, [k], with values of `dtype`."""
    return Entries(*(part[:, 0] for part in from_message(words, dtype)))


def cleared(kernels: Kernels, tensors: Sequence[tf.Tensor], own: tf.Tensor, counts: Sequence[int]) -> list[tf.Tensor]:
    """Returns tensors with zeros where entries are not empty.

    Args:
        kernels: of the compressor.
        tensors: float32 or float64, one or more for each gradient: all first ones, then all second ones ..
        own: the message.
        counts: how many entries of it are of each gradient.
    """
    repeats = len(tensors) // len(counts)

    def kernel(tensors: Sequence[tf.Tensor], own: tf.Tensor) -> list[tf.Tensor]:
        entries = from_message(own, tensors[0].dtype)
        begins = np.cumsum([0, *_sizes([tensor.shape for tensor in tensors[: len(counts)]])])[:-1]
        values, indices = (tf.split(part[0], list(counts)) for part in entries)
        indices = [part - int(begin) for part, begin in zip(indices, begins, strict=True)]
        return [
            _without(tensor, Entries(*part))
            for tensor, *part in zip(tensors, values * repeats, indices * repeats, strict=True)
        ]

    return kernels.compiled(kernel, "clear", [*tensors, own], tuple(counts))(list(tensors), own)


def split(flat: tf.Tensor, shapes: Sequence[tf.TensorShape]) -> list[tf.Tensor]:
    """Returns the gradients that lie one behind the other in `flat`."""
    parts = [flat] if len(shapes) == 1 else tf.split(flat, _sizes(shapes))
    return [tf.reshape(part, shape) for part, shape in zip(parts, shapes, strict=True)]


def _sums(
    kernels: Kernels,
    messages: tf.Tensor,
    dtype: tf.DType,
    dtype_of_values: tf.DType,
    shapes: Sequence[tf.TensorShape],
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Returns the sums of messages as dense gradients, and whether they are finite."""

    def kernel(messages: tf.Tensor) -> tuple[list[tf.Tensor], tf.Tensor]:
        entries = from_message(messages, dtype_of_values)
        flat = tf.zeros([sum(_sizes(shapes))], dtype_of_values)
        # One member after the other: where several send the same element, all members add in the same order.
        for values, indices in zip(tf.unstack(entries.values), tf.unstack(entries.indices), strict=True):
            flat = tf.tensor_scatter_nd_add(flat, indices[:, tf.newaxis], values)
        flat = tf.cast(flat, dtype)
        return split(flat, shapes), all_finite([tf.gather(flat, tf.reshape(entries.indices, [-1]))])

    options = dtype, dtype_of_values, tuple(map(tuple, shapes))
    return kernels.compiled(kernel, "add", messages, *options)(messages)


def _without(tensor: tf.Tensor, entries: Entries) -> tf.Tensor:
    flat, places = tf.reshape(tensor, [-1]), entries.indices[:, tf.newaxis]
    zero = tf.zeros([], flat.dtype)
    is_empty = tf.equal(entries.values, zero)
    # A difference, not an update: empty entries share an index, with each other and with one that is not empty.
    gone = tf.where(is_empty, zero, tf.gather(flat, entries.indices))
    return tf.reshape(tf.tensor_scatter_nd_sub(flat, places, gone), tensor.shape)


def _sizes(shapes: Sequence[tf.TensorShape]) -> list[int]:
    return [shape.num_elements() or 0 for shape in shapes]
