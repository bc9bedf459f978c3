"""What Python gives is read with its hooks, once an epoch, and no value of it is changed."""

import json
from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tfdp.data import sharding
from tfdp.data.layout import Layout


class Shuffled(keras.utils.PyDataset):
    """Twelve rows that are shuffled at the end of each epoch."""

    def __init__(self, seed=0, grows=False):
        super().__init__()
        self.rows, self.log, self.grows = np.arange(12), "", grows
        self._generator = np.random.default_rng(seed)

    def __len__(self):
        return len(self.rows) // 4

    def __getitem__(self, index):
        rows = self.rows[4 * index : 4 * index + 4].astype("float32")[:, np.newaxis]
        return rows, rows

    def on_epoch_begin(self):
        self.log += "("

    def on_epoch_end(self):
        self.log += ")"
        if self.grows:
            self.rows = np.arange(len(self.rows) + 4)
        self._generator.shuffle(self.rows)


def epoch_of(data):
    return [int(row) for batch in data for row in batch[0].numpy()[:, 0]]


def in_epoch(dataset, epoch, legs=()):
    data = tfdp.data.shard(dataset, global_batch_size=4)
    state = {**json.loads(data.position.serialize()), "epoch": epoch, "legs": list(legs)}
    data.position.deserialize(json.dumps(state))
    return data


def test_the_hooks_of_a_py_dataset_are_called_once_an_epoch():
    dataset = Shuffled()
    data = tfdp.data.shard(dataset, global_batch_size=4)
    epochs = [epoch_of(data) for _ in range(3)]
    assert dataset.log == "()()()"
    assert all(sorted(epoch) == list(range(12)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_keras_sees_each_epoch_as_long_as_it_is():
    dataset, steps = Shuffled(grows=True), []
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    count = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: steps.append(batch))
    model.fit(tfdp.data.shard(dataset, global_batch_size=4), epochs=3, verbose=0, callbacks=[count])
    assert steps == [*range(3), *range(4), *range(5)]
    assert dataset.log == "()()()"


def test_a_py_dataset_that_shuffles_goes_on_where_it_stood():
    data = tfdp.data.shard(Shuffled(), global_batch_size=4)
    epochs = [epoch_of(data) for _ in range(3)]
    assert epoch_of(in_epoch(Shuffled(), 2)) == epochs[2]
    assert epoch_of(in_epoch(Shuffled(), 2, [[1, 4, 1]])) == epochs[2][4:]


def test_a_py_dataset_that_shuffles_is_audited_as_it_is():
    found = tfdp.data.audit(Shuffled(), num_workers=2, global_batch_size=4, epochs=3)
    assert found.problems == []
    assert found.order_differs


def test_workers_whose_py_datasets_differ_are_told():
    other = Shuffled(seed=1)
    other.on_epoch_end()

    def everyones(topic, value):
        return (
            [value, [len(other), tfdp.data.python_sources._digest(other[0])]] if "PyDataset" in topic else [value] * 2
        )

    strategy = mock.Mock(spec=tf.distribute.Strategy, everyones=everyones)
    strategy.distribute_datasets_from_function = lambda function: function(None)
    with mock.patch.object(sharding, "layout_of", lambda strategy: Layout(2, 0, 1)):
        data = tfdp.data.shard(Shuffled(), strategy=strategy, global_batch_size=4)
    with pytest.raises(ValueError, match="A PyDataset must give the same batches on all workers: where it shuffles on"):
        next(iter(data))


def test_what_is_random_in_a_batch_is_no_difference():
    class Noisy(Shuffled):
        def __getitem__(self, index):
            return np.random.normal(size=(4, 1))

    source = tfdp.data.python_sources.PyBatches(Noisy())
    assert source.fingerprint() == [3, ""]
    assert tfdp.data.python_sources.PyBatches(Shuffled()).fingerprint()[1]


@pytest.mark.parametrize(
    ("examples", "dtype"),
    [
        ([1.0, 2, np.float32(0.5)], "float64"),
        ([np.int32(1), 2, np.int64(3)], "int32"),
        ([np.float32(1), 2.5, True], "float32"),
    ],
)
def test_examples_that_fit_take_the_type_of_the_first(examples, dtype):
    (batch,) = tfdp.data.shard(lambda: iter(examples), global_batch_size=3)
    assert batch.dtype.name == dtype
    np.testing.assert_array_equal(batch, np.array(examples, dtype))


@pytest.mark.parametrize(
    ("examples", "received"),
    [
        ([1, 2.5], "float64 2.5, where the first one was int64"),
        ([np.int32(1), 2**40], "int64 1099511627776, where the first one was int32"),
        ([1.0, "a"], "str32 'a', where the first one was float64"),
        ([True, 2], "int64 2, where the first one was bool"),
    ],
)
def test_examples_that_would_be_changed_are_refused(examples, received):
    data = tfdp.data.shard(lambda: iter(examples), global_batch_size=2)
    with pytest.raises(tf.errors.OpError, match="must be of the types of the first one") as raised:
        list(data)
    assert f"Received: {received}" in str(raised.value)


def test_lists_of_numbers_in_examples_are_arrays():
    (batch,) = tfdp.data.shard(lambda: iter([([1.0, 2.0], 1), ([3.0, 4.0], 0)]), global_batch_size=2)
    assert [part.numpy().tolist() for part in batch] == [[[1.0, 2.0], [3.0, 4.0]], [1, 0]]

    class TwoInputs(Shuffled):
        def __getitem__(self, index):
            rows = super().__getitem__(index)[0]
            return [rows, rows + 1], rows

    (first, second), target = next(iter(tfdp.data.shard(TwoInputs(), global_batch_size=4)))
    assert (first[1, 0], second[1, 0], target[1, 0]) == (1, 2, 1)


@pytest.mark.parametrize(
    ("example", "message"),
    [
        (
            (1.0, None),
            "Examples must hold no None. Received: one of the generator <lambda>. Leave it out of the tuple.",
        ),
        (
            tf.ragged.constant([[1], [2, 3]]),
            "Examples that Python gives must be dense arrays. Received: a RaggedTensor",
        ),
        (tf.sparse.from_dense([1, 0]), "Examples that Python gives must be dense arrays. Received: a SparseTensor"),
        ({1, 2}, "Examples must be numbers, booleans or strings. Received: {1, 2} of the generator <lambda>."),
    ],
)
def test_examples_that_no_tensor_holds_are_refused(example, message):
    with pytest.raises(TypeError) as raised:
        tfdp.data.shard(lambda: iter([example]), global_batch_size=2)
    assert str(raised.value).startswith(message)
