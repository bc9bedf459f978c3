"""Sparse gradients add up exactly, as rows or as tables, whichever is the smaller message."""

import numpy as np
import pytest
import tensorflow as tf

from tfdp import sparse
from tfdp.collectives import loopback

NUM_ROWS, WIDTH = 40, 5


def slices(indices, dtype=tf.float32, index_dtype=tf.int64, row_shape=(WIDTH,), seed=0):
    values = np.random.default_rng(seed).standard_normal((len(indices), *row_shape))
    return tf.IndexedSlices(
        tf.constant(values, dtype),
        tf.constant(indices, index_dtype, [len(indices)]),
        tf.constant([NUM_ROWS, *row_shape]),
    )


def as_table(some):
    shape = tf.constant(some.dense_shape.numpy(), some.indices.dtype)
    return tf.scatter_nd(some.indices[:, tf.newaxis], tf.cast(some.values, tf.float64), shape).numpy()


def reduce(parts, values_dtype=None):
    """Returns what every member gets, and the names of the calls that the group was asked for."""

    def member(group):
        names = []

        class Watched:
            size, rank, can_branch, can_exchange = group.size, group.rank, group.can_branch, True

            def __getattr__(self, operation):
                def call(*arguments, name, **options):
                    names.append(name)
                    return getattr(group, operation)(*arguments, name=name, **options)

                return call

        return sparse.reduce_slices(parts[group.rank], Watched(), values_dtype, name="x"), names

    return loopback(len(parts), member)


FEW = ([3, 3, 7], [7, 0])
MANY = (list(range(NUM_ROWS)), list(range(NUM_ROWS)), list(range(0, NUM_ROWS, 2)))


@pytest.mark.parametrize("members", [FEW, MANY, ([1], []), ([], []), ([5] * 100, [5] * 3)])
@pytest.mark.parametrize("dtype", [tf.float32, tf.float64, tf.float16, tf.bfloat16], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("index_dtype", [tf.int32, tf.int64], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("row_shape", [(WIDTH,), (1,), (2, 3)])
def test_the_sum_is_that_of_all_members(members, dtype, index_dtype, row_shape):
    parts = [slices(indices, dtype, index_dtype, row_shape, seed) for seed, indices in enumerate(members)]
    expected = sum(as_table(part) for part in parts)
    rounding = {tf.float64: 1e-14, tf.float32: 1e-5, tf.float16: 0.1, tf.bfloat16: 1.0}[dtype]
    for total, _ in reduce(parts):
        assert (total.values.dtype, total.indices.dtype) == (dtype, index_dtype)
        assert total.values.shape[1:] == row_shape
        np.testing.assert_allclose(as_table(total), expected, atol=rounding)


def test_every_member_gets_the_same_bits():
    for members in (FEW, MANY):
        results = reduce([slices(indices, seed=seed) for seed, indices in enumerate(members)])
        assert len({(total.values.numpy().tobytes(), total.indices.numpy().tobytes()) for total, _ in results}) == 1


def test_few_rows_travel_as_rows_each_once():
    for total, names in reduce([slices([3, 3, 7]), slices([7, 0])]):
        assert names == ["x counts", "x rows"]
        assert sorted(total.indices.numpy()) == [0, 3, 7, 7]


def test_many_rows_travel_as_a_table():
    for total, names in reduce([slices(list(range(NUM_ROWS)))] * 3):
        assert names == ["x counts", "x table"]
        assert total.indices.numpy().tolist() == list(range(NUM_ROWS))


def test_the_smaller_message_is_chosen():
    # A row of 5 float32 and its index are 28 bytes, one of the table 20: 57 rows of all members are as many bytes as
    # a sum of tables, 2 x 40 x 20.
    for num_rows, way in ((57, "x rows"), (58, "x table")):
        parts = [slices(list(range(num_rows - 20))), slices(list(range(20)))]
        assert reduce(parts)[0][1] == ["x counts", way]


@pytest.mark.parametrize("dtype", [tf.bfloat16, tf.float16], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("members", [FEW, MANY])
def test_values_may_be_cast_but_indices_are_exact(dtype, members):
    parts = [slices(indices, seed=seed) for seed, indices in enumerate(members)]
    expected = sum(as_table(part) for part in parts)
    for total, _ in reduce(parts, dtype):
        np.testing.assert_allclose(as_table(total), expected, rtol=0.02, atol=0.02)
        untouched = np.setdiff1d(np.arange(NUM_ROWS), np.concatenate(members))
        assert not np.any(as_table(total)[untouched])


def test_large_values_stay_finite_when_cast_and_nan_arrives():
    large = tf.IndexedSlices(tf.constant([[1e30], [np.nan]]), tf.constant([1, 2], tf.int64), tf.constant([NUM_ROWS, 1]))
    for total, _ in reduce([large, large], tf.float16):
        table = as_table(total)
        assert np.all(np.isfinite(table[1])) and np.isnan(table[2, 0])


@pytest.mark.parametrize(("num_members", "way"), [(2, "x rows"), (3, "x table")])
def test_sums_of_tables_stay_within_the_range_of_the_gradient_when_float16_travels(num_members, way):
    large = tf.IndexedSlices(tf.fill([4, 8], 4e4), tf.range(4, dtype=tf.int64), tf.constant([4, 8]))
    for total, names in reduce([large] * num_members, tf.float16):
        assert names == ["x counts", way]
        np.testing.assert_allclose(as_table(total), np.full((4, 8), 4e4 * num_members), rtol=1e-3)
