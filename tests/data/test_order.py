"""Rows are shared so that Keras joins what is predicted in their order, and all workers take about the same."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdp.data import Layout, order
from tfdp.data.sharding import ShardedDataset, shared


def layouts(num_workers, num_replicas):
    return [Layout(num_workers, worker, num_replicas) for worker in range(num_workers)]


@given(
    num_workers=st.integers(1, 6), num_replicas=st.integers(1, 4), size=st.integers(1, 40), missing=st.integers(0, 39)
)
@settings(derandomize=True, database=None, deadline=None, max_examples=300)
def test_replicas_take_rows_in_the_order_in_which_keras_joins_them(num_workers, num_replicas, size, missing):
    num_rows = max(size - missing, 0)
    pieces = [order.pieces(layout, size, num_rows) for layout in layouts(num_workers, num_replicas)]
    joined = [row for replica in range(num_replicas) for own in pieces for row in range(*own[replica])]
    assert joined == list(range(num_rows))
    counts = [sum(end - begin for begin, end in own) for own in pieces]
    assert max(counts) - min(counts) <= 1


@given(num_workers=st.integers(1, 6), num_replicas=st.integers(1, 4), size=st.integers(1, 20), count=st.integers(0, 70))
@settings(derandomize=True, database=None, deadline=None, max_examples=200)
def test_rows_of_an_epoch_are_those_of_its_batches(num_workers, num_replicas, size, count):
    for layout in layouts(num_workers, num_replicas):
        expected = [
            first + row
            for first in range(0, count, size)
            for begin, end in order.pieces(layout, size, min(size, count - first))
            for row in range(begin, end)
        ]
        assert order.own_rows(np.arange(count), layout, size).tolist() == expected


@pytest.mark.parametrize("name", ["arrays", "stream"])
@given(num_workers=st.integers(1, 4), num_replicas=st.integers(1, 3), size=st.integers(1, 12), count=st.integers(0, 40))
@settings(derandomize=True, database=None, deadline=None, max_examples=8)
def test_the_batches_of_replicas_join_to_the_data(name, num_workers, num_replicas, size, count):
    rows = np.arange(count) if name == "arrays" else tf.data.Dataset.range(count).filter(lambda row: row >= 0)
    steps = []
    for layout in layouts(num_workers, num_replicas):
        source, options, _ = shared(rows, layout, global_batch_size=size)
        batches = [
            batch.tolist() for batch in ShardedDataset(source, options, layout).local_batches().as_numpy_iterator()
        ]
        batches += [[]] * (-(-count // size) * num_replicas - len(batches))
        steps.append([batches[i : i + num_replicas] for i in range(0, len(batches), num_replicas)])
    joined = [
        row
        for step in zip(*steps, strict=True)
        for replica in zip(*step, strict=True)
        for part in replica
        for row in part
    ]
    assert joined == list(range(count))
