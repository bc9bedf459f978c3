"""Sparse gradients: which rows travel, and when the whole table is the smaller message."""

import tensorflow as tf

from tfdp import words
from tfdp.collectives import Communicator


def gather_slices(slices: tf.IndexedSlices, group: Communicator, *, name: str) -> tf.IndexedSlices:
    """Returns the rows of every member as they are: those that several touch, or one touches twice, several times."""
    values = group.gather_rows(slices.values, name=f"{name} values")
    return tf.IndexedSlices(values, group.gather_rows(slices.indices, name=f"{name} indices"), slices.dense_shape)


def reduce_slices(
    slices: tf.IndexedSlices, group: Communicator, values_dtype: tf.DType | None, *, name: str
) -> tf.IndexedSlices:
    """Returns the sum of every member's gradient of the same table, as rows.

    Each member adds up the rows that it has several of. Then the rows of all travel, or, where that is more bytes than
    a sum of whole tables, the tables; members know by their counts, so all go the same way. Indices are exact always.

    Args:
        slices: this member's; values [rows, ...], indices [rows], repeated ones allowed.
        group: the members.
        values_dtype: in which values travel; None as they are.
        name: what is reduced, the same on all members.
    """
    num_rows = None if slices.dense_shape is None else tf.get_static_value(slices.dense_shape)[0]
    if num_rows is None or not group.can_branch:  # within one process nothing is gained
        return gather_slices(slices, group, name=name)
    values, indices = _without_repetitions(slices)
    row_shape = slices.values.shape[1:]
    short = _cast(values, values_dtype)
    counts = group.gather(tf.reshape(tf.size(indices), [1]), name=f"{name} counts")
    row_elements = int(row_shape.num_elements())
    gathered_bytes = tf.reduce_sum(tf.cast(counts, tf.int64)) * (row_elements * short.dtype.size + indices.dtype.size)
    summed = short if short.dtype != tf.float16 else values  # sums could leave its range
    summed_bytes = 2 * int(num_rows) * row_elements * summed.dtype.size

    def as_table() -> tuple[tf.Tensor, tf.Tensor]:
        shape = tf.constant([num_rows, *row_shape], indices.dtype)
        table = tf.scatter_nd(indices[:, tf.newaxis], summed, shape)
        total = group.sum([tf.ensure_shape(table, [num_rows, *row_shape])], name=f"{name} table")[0]
        return tf.cast(total, values.dtype), tf.range(num_rows, dtype=indices.dtype)

    def as_rows() -> tuple[tf.Tensor, tf.Tensor]:
        flat = tf.reshape(short, [-1, row_elements])
        of_values, of_indices = words.as_words(flat), words.as_words(indices[:, tf.newaxis])
        message = tf.concat([of_values, of_indices], axis=1)
        rows = group.gather_rows(message, counts=counts, name=f"{name} rows")
        gathered = words.from_words(rows[:, : of_values.shape[1]], short.dtype)[:, : flat.shape[1]]
        return (
            tf.cast(tf.reshape(gathered, [-1, *row_shape]), values.dtype),
            words.from_words(rows[:, of_values.shape[1] :], indices.dtype)[:, 0],
        )

    values, indices = tf.cond(gathered_bytes > summed_bytes, as_table, as_rows)
    return tf.IndexedSlices(values, indices, slices.dense_shape)


def _without_repetitions(slices: tf.IndexedSlices) -> tuple[tf.Tensor, tf.Tensor]:
    indices, positions = tf.unique(slices.indices)
    return tf.math.unsorted_segment_sum(slices.values, positions, tf.size(indices)), indices


def _cast(values: tf.Tensor, dtype: tf.DType | None) -> tf.Tensor:
    """Returns finite values as finite ones of `dtype`, where that is shorter."""
    if dtype is None or not values.dtype.is_floating or values.dtype.size <= dtype.size:
        return values
    largest = tf.cast(dtype.max, values.dtype)
    clamped = tf.clip_by_value(values, -largest, largest)
    return tf.cast(tf.where(tf.math.is_inf(values), values, clamped), dtype)
