"""What `fit` gets as it is comes in one order on all workers, or a warning says that it does not."""

from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tfdp import keras_seam, tf_seam

X = np.arange(8, dtype="float32")[:, np.newaxis]
Dataset = tf.data.Dataset


def given_to_keras(x, y=None, *, others=None, **options):
    """Returns what Keras gets in place of `x` on one of two workers, and what is given to `shard` for it."""
    given, shared = {}, []

    def share(data, **arguments):
        shared.append((data, arguments))
        return "shared"

    strategy = mock.Mock(everyones=lambda topic, value: [value, value if others is None else others])
    with mock.patch.object(tf_seam, "in_multi_worker_mode", lambda strategy: True):
        keras_seam._share_data(
            lambda strategy: object(),
            share,
            lambda iterator, strategy, **arguments: given.update(arguments),
            *(None, strategy),
            **{"x": x, "y": y, "shuffle": True, **options},
        )
    return given, shared


@pytest.mark.parametrize("shuffle", [True, "batch"])
def test_arrays_that_keras_shuffles_are_shared(shuffle):
    given, ((data, arguments),) = given_to_keras(X, X, batch_size=4, shuffle=shuffle)
    assert (given["x"], given["y"], given["shuffle"]) == ("shared", None, False)
    assert arguments["global_batch_size"] == 4 and arguments["shuffle_buffer"]
    assert [len(part) for part in data] == [8, 8]
    given, shared = given_to_keras(X, X, batch_size=4, shuffle=False)
    assert given["x"] is X and not shared


def test_sparse_arrays_that_keras_shuffles_are_shared_row_by_row():
    rows = tf.sparse.from_dense(np.eye(8, dtype="float32"))
    _, ((data, arguments),) = given_to_keras(rows, X, batch_size=4)
    assert isinstance(data, Dataset) and len(data) == arguments["shuffle_buffer"] == 8
    batches = list(tfdp.data.shard(data, global_batch_size=4))
    np.testing.assert_array_equal(tf.sparse.to_dense(batches[1][0]), np.eye(8)[4:])


def rows():
    return Dataset.from_tensor_slices(X)


def test_a_shuffle_of_each_worker_s_own_is_replaced():
    with tf_seam.without_global_seed():
        given, shared = given_to_keras(rows().shuffle(8).batch(4), shuffle=False)
    assert given["x"] == "shared" and len(shared) == 1
    given, shared = given_to_keras(rows().shuffle(8, seed=1).batch(4), others=[[[1, 2]], False], shuffle=False)
    assert given["x"] == "shared" and len(shared) == 1


@pytest.mark.parametrize(
    "make",
    [
        lambda: rows().shuffle(8).repeat(2).batch(4),
        lambda: rows().batch(4).map(tf.identity, num_parallel_calls=2, deterministic=False),
        lambda: rows().batch(4).flat_map(lambda batch: Dataset.from_tensor_slices(batch).shuffle(4)).batch(4),
        lambda: rows().filter(lambda row: tf.random.uniform([]) < 0.5).batch(4),
        lambda: rows().batch(4).interleave(Dataset.from_tensors, num_parallel_calls=2, deterministic=False),
        lambda: Dataset.sample_from_datasets([rows(), rows()]).batch(4),
    ],
    ids=["repeated", "as soon as it is there", "in a function", "filtered", "interleaved", "sampled"],
)
def test_an_order_of_each_worker_s_own_is_warned_of(make, caplog):
    with tf_seam.without_global_seed():
        given, shared = given_to_keras(make(), shuffle=False)
    assert not shared and isinstance(given["x"], Dataset)
    assert "the data set has another order on each worker" in caplog.text


def test_one_order_is_kept_and_enforced(caplog):
    options = tf.data.Options()
    options.deterministic = False
    given, shared = given_to_keras(rows().batch(4).with_options(options), shuffle=False)
    assert not shared and "tfdp" not in caplog.text
    assert given["x"].options().deterministic is True
