"""Every example comes once an epoch over all workers, and a step is the same batch that one device would have."""

import collections
import json
import types

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from integration import workers

import tfdp
from tfdp import tf_seam
from tfdp.data import Layout, Source
from tfdp.data.layout import assigned
from tfdp.data.sharding import ShardedDataset, shared

fixed_examples = settings(derandomize=True, database=None, deadline=None, max_examples=6)


class Parts(Source):
    """Parts of ascending numbers, of which nobody knows how many there are before they are read."""

    name = "parts"

    def __init__(self, sizes):
        self.part_sizes = [size + 1 for size in sizes]  # like the bytes of files, of which none is empty
        self._edges = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)

    def examples(self, parts=None):
        dataset = tf.data.Dataset.range(0)
        for part in range(len(self.part_sizes)) if parts is None else parts:
            dataset = dataset.concatenate(tf.data.Dataset.range(*self._edges[part : part + 2]))
        return dataset.filter(lambda row: row >= 0).map(lambda row: (row, row))


class Pieces(Parts):
    """A source that can be split."""

    splits = True

    def __init__(self, first, end):
        self._first, self.num_examples = first, end - first

    part_sizes = ()

    def examples(self, parts=None):
        return tf.data.Dataset.range(self._first, self._first + self.num_examples).map(lambda row: (row, row))

    def split(self, num_pieces, piece):
        edges = [self._first + self.num_examples * index // num_pieces for index in (piece, piece + 1)]
        return Pieces(*edges)


def stream(num_examples):
    return tf.data.Dataset.range(num_examples).map(lambda row: (row, row))


SOURCES = {
    "arrays": lambda n: (np.arange(n), np.arange(n)),
    "stream": stream,
    "stream of unknown length": lambda n: stream(n).filter(lambda row, _: row >= 0),
    "batches": lambda n: tf.data.Dataset.range(n).map(lambda row: (row, row)).batch(3),
    "changed batches": lambda n: tf.data.Dataset.range(n).batch(3).map(lambda rows: (rows, rows)),
    "files": lambda n: Parts([n // 2, 0, n - n // 2 - n // 3, n // 3, 0]),
    "pieces": lambda n: Pieces(0, n),
}


class Member(ShardedDataset):
    def __init__(self, crew, *args):
        self._crew = crew
        super().__init__(*args)
        crew.append(self)

    def _everyones(self, topic, ask):
        return [ask(member._reader) for member in self._crew]


def crew_of(make, num_workers, num_replicas=1, state=None, **options):
    """Returns the sharded data of all workers."""
    crew = []
    for worker in range(num_workers):
        layout = Layout(num_workers, worker, num_replicas)
        source, chosen, reason = shared(make(), layout, **options)
        Member(crew, source, chosen, layout, None, reason)
    for member in crew if state is not None else ():
        member.position.deserialize(json.dumps(state))
    return crew


def steps_of(member, num_replicas=1):
    """Returns the rows and the weights of each step of what is left of an epoch."""
    batches = list(member.local_batches().as_numpy_iterator())
    grouped = [batches[i : i + num_replicas] for i in range(0, len(batches), num_replicas)]
    return [
        [
            (int(row), float(weight))
            for batch in step
            for row, weight in zip(batch[0], batch[2] if len(batch) == 3 else np.ones(len(batch[0])), strict=True)
        ]
        for step in grouped
    ]


def joined(lists):
    return [item for items in lists for item in items]


def rows_of(steps):
    return [row for step in steps for row, weight in step if weight]


@pytest.mark.parametrize("name", SOURCES)
@fixed_examples
@given(
    num_examples=st.integers(0, 200),
    global_batch_size=st.integers(1, 32),
    num_workers=st.integers(1, 5),
    num_replicas=st.integers(1, 3),
    uneven=st.sampled_from(["exact", "drop", "pad"]),
    shuffle_buffer=st.sampled_from([0, 7, 1000]),
)
def test_every_example_comes_once_or_is_dropped_or_padded_as_said(
    name, num_examples, global_batch_size, num_workers, num_replicas, uneven, shuffle_buffer
):
    options = {"global_batch_size": global_batch_size, "uneven": uneven, "shuffle_buffer": shuffle_buffer, "seed": 3}
    crew = crew_of(lambda: SOURCES[name](num_examples), num_workers, num_replicas, **options)
    everyones = [steps_of(member, num_replicas) for member in crew]
    rows = [row for steps in everyones for row in rows_of(steps)]
    assert max(collections.Counter(rows).values(), default=1) == 1
    own = crew[0]._options.own_streams
    if uneven != "drop":
        assert sorted(rows) == list(range(num_examples))
    elif not own:
        assert len(rows) == num_examples // global_batch_size * global_batch_size
    most = max(map(len, everyones))
    if uneven == "pad" and num_examples:
        for member, steps in zip(crew, everyones, strict=True):
            share = own_batch(member)
            assert [len(step) for step in steps] == ([share] * most if share else [])
    if own and uneven == "drop":
        assert len({len(steps) for steps in everyones}) == 1
        assert {len(step) for steps in everyones for step in steps} <= {global_batch_size // num_workers}
    expected = crew[0].num_batches
    assert expected is None or expected == most


def own_batch(member):
    size, layout = member._options.global_batch_size, member._layout
    return len(range(layout.worker, size, layout.num_workers))  # as if they were dealt one by one


@pytest.mark.parametrize("name", ["arrays", "stream", "stream of unknown length", "batches"])
@pytest.mark.parametrize(("num_workers", "num_replicas", "size"), [(2, 1, 6), (3, 2, 6), (2, 2, 5), (4, 1, 6)])
def test_the_batches_are_those_of_one_device_whatever_the_workers(name, num_workers, num_replicas, size):
    options = {"global_batch_size": size, "shuffle_buffer": 100, "seed": 1}
    (alone,) = crew_of(lambda: SOURCES[name](49), 1, **options)
    crew = crew_of(lambda: SOURCES[name](49), num_workers, num_replicas, **options)
    for epoch in range(2):
        expected = [sorted(batch[0].tolist()) for batch in alone.local_batches(epoch).as_numpy_iterator()]
        steps = [[] for _ in expected]
        for member in crew:
            for index, batch in enumerate(member.local_batches(epoch).as_numpy_iterator()):
                steps[index // num_replicas] += batch[0].tolist()
        assert [sorted(step) for step in steps] == expected


@pytest.mark.parametrize("name", SOURCES)
def test_the_order_is_another_each_epoch_and_the_same_for_a_seed(name):
    def orders(seed):
        crew = crew_of(lambda: SOURCES[name](60), 2, global_batch_size=4, shuffle_buffer=60, seed=seed)
        return [
            [row for member in crew for batch in member.local_batches(epoch).as_numpy_iterator() for row in batch[0]]
            for epoch in range(3)
        ]

    first, again, other = orders(1), orders(1), orders(2)
    assert first == again
    assert len({tuple(order) for order in [*first, *other]}) == 6


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("workers", [(2, 3, 1), (3, 2, 2), (1, 3, 2)])
def test_what_is_left_of_an_epoch_comes_once_whatever_workers_go_on(name, workers):
    rows, state = [], None
    for index, num_workers in enumerate(workers):
        options = {"global_batch_size": 6, "shuffle_buffer": 20, "seed": 5}
        if state is None:
            (some, *_) = crew_of(lambda: SOURCES[name](41), num_workers, **options)
            state = {"epoch": 1, "legs": [], "seed": 5, "by": some.by, "own_streams": some._options.own_streams}
        crew = crew_of(lambda: SOURCES[name](41), num_workers, state=state, **options)
        is_last = index == len(workers) - 1
        for member in crew:
            rows += rows_of(steps_of(member)[: None if is_last else 2])
        state = {**state, "legs": [*state["legs"], [num_workers, 6, 2]]}
    assert sorted(rows) == list(range(41))


def test_an_epoch_after_the_other_can_be_read_in_a_loop():
    data = tfdp.data.shard((np.arange(10), np.arange(10)), global_batch_size=4, shuffle_buffer=10, seed=0)
    epochs = [[batch[0].numpy().tolist() for batch in data] for _ in range(2)]
    assert [len(batch) for batch in epochs[0]] == [4, 4, 2]
    assert sorted(joined(epochs[0])) == sorted(joined(epochs[1])) == list(range(10))
    assert epochs[0] != epochs[1]
    assert (len(data), data.epoch) == (3, 2)


def test_a_position_goes_through_a_checkpoint(tmp_path):
    def make():
        return tfdp.data.shard((np.arange(10), np.arange(10)), global_batch_size=4, shuffle_buffer=10)

    data, other = make(), make()
    whole = [batch[0].numpy().tolist() for batch in make().local_batches(0)]
    begun = iter(data)
    first = next(begun)[0].numpy().tolist()
    path = tf.train.Checkpoint(data=data.position).write(str(tmp_path / "checkpoint"))
    tf.train.Checkpoint(data=other.position).read(path).assert_consumed()
    assert len(other) == 2
    left = [row for batch in other for row in batch[0].numpy().tolist()]
    assert sorted(first + left) == sorted(joined(whole))
    assert [batch[0].numpy().tolist() for batch in other] != left


# What can be shared


def values(data):
    return [
        tf.nest.map_structure(lambda leaf: leaf.to_list() if isinstance(leaf, tf.RaggedTensor) else leaf.numpy(), batch)
        for batch in data
    ]


def test_ragged_sparse_strings_and_dicts_are_shared():
    ragged = tf.ragged.constant([[1.0], [1.0, 2.0], [3.0, 4.0, 5.0], [2.0], [1.0, 1.0], [6.0]])
    of_ragged = values(tfdp.data.shard(tf.data.Dataset.from_tensor_slices(ragged), global_batch_size=4))
    assert of_ragged == [ragged[:4].to_list(), ragged[4:].to_list()]
    assert values(tfdp.data.shard(ragged, global_batch_size=4)) == of_ragged
    strings = {"word": np.array(["a", "b", "c"]), "number": np.arange(3)}
    first, second = values(tfdp.data.shard(strings, global_batch_size=2))
    assert (first["word"].tolist(), second["word"].tolist()) == ([b"a", b"b"], [b"c"])
    sparse = tf.data.Dataset.from_tensor_slices(tf.sparse.from_dense(np.eye(5)))
    rows = [tf.sparse.to_dense(batch).numpy() for batch in tfdp.data.shard(sparse, global_batch_size=2)]
    np.testing.assert_array_equal(np.concatenate(rows), np.eye(5))
    parts = crew_of(lambda: sparse, 1, 2, global_batch_size=3)[0].local_batches()
    assert [int(part.dense_shape[0]) for part in parts] == [1, 2, 1, 1]


def test_padded_batches_are_padded_anew():
    rows = tf.data.Dataset.range(1, 5).map(lambda length: tf.ones([length])).padded_batch(3)
    assert [batch.shape.as_list() for batch in tfdp.data.shard(rows, global_batch_size=2)] == [[2, 2], [2, 4]]


def test_batches_are_taken_apart_and_give_their_size_and_what_they_drop():
    dataset = tf.data.Dataset.range(10).batch(4, drop_remainder=True)
    assert [batch.numpy().tolist() for batch in tfdp.data.shard(dataset)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert [len(batch) for batch in tfdp.data.shard(dataset, global_batch_size=5, uneven="exact")] == [5, 5]


def test_a_shuffle_without_a_seed_is_replaced_by_one_that_all_workers_have():
    dataset = tf.data.Dataset.range(100).shuffle(100)
    parts = [
        [row for batch in member.local_batches() for row in batch.numpy().tolist()]
        for member in crew_of(lambda: dataset, 3, global_batch_size=6, seed=0)
    ]
    assert sorted(joined(parts)) == list(range(100))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert joined(parts) != list(range(100))


def test_maps_before_batches_run_on_a_workers_own_examples_only():
    seen = []

    def remember(row):
        seen.append(int(row))
        return row

    dataset = tf.data.Dataset.range(12).map(lambda row: tf.numpy_function(remember, [row], tf.int64)).batch(4)
    one, _ = crew_of(lambda: dataset, 2)
    assert rows_in(one) == [0, 1, 4, 5, 8, 9] == sorted(seen)


def rows_in(data):
    return [row for batch in data.local_batches() for row in batch.numpy().tolist()]


def test_a_function_of_the_user_is_mapped_over_own_examples():
    data = tfdp.data.shard(np.arange(6), global_batch_size=4, map=lambda row: (row, row * row))
    assert [batch[1].numpy().tolist() for batch in data] == [[0, 1, 4, 9], [16, 25]]


class Squares(keras.utils.PyDataset):
    num_batches = 3

    def __getitem__(self, index):
        rows = np.arange(index * 4, min(index * 4 + 4, 10))
        return rows, rows * rows


def generate():
    for row in range(10):
        yield row, row * row


@pytest.mark.parametrize("dataset", [Squares(), generate], ids=["PyDataset", "generator"])
def test_generators_and_py_datasets_are_read_by_all_and_shared(dataset):
    crew = crew_of(lambda: dataset, 2, global_batch_size=4, shuffle_buffer=10, seed=0)
    pairs = [pair for member in crew for batch in member.local_batches() for pair in zip(*batch, strict=True)]
    assert sorted((int(x), int(y)) for x, y in pairs) == [(row, row * row) for row in range(10)]


def test_pandas_objects_are_arrays():
    frame = types.SimpleNamespace(to_numpy=lambda: np.arange(6).reshape(3, 2))
    assert [batch.numpy().tolist() for batch in tfdp.data.shard(frame, global_batch_size=3)] == [
        [[0, 1], [2, 3], [4, 5]]
    ]


def test_a_cache_is_filled_once_and_shuffled_each_epoch():
    count = tf.Variable(0)

    def counted(row):
        count.assign_add(1)
        return row

    dataset = tf.data.Dataset.range(8).map(counted).filter(lambda row: True)
    data = tfdp.data.shard(dataset, global_batch_size=4, shuffle_buffer=8, seed=0, cache=True)
    epochs = [[batch.numpy().tolist() for batch in data] for _ in range(2)]
    assert int(count) == 8
    assert epochs[0] != epochs[1]


# Files or examples


@pytest.mark.parametrize(
    ("source", "num_workers", "size", "by", "reason"),
    [
        (Parts([5, 5]), 2, 4, "files", "2 files of much the same size for 2 worker(s)"),
        (Parts([6]), 2, 4, "examples", "there are 1 file(s) for 2 workers"),
        (Parts([90, 10]), 2, 4, "examples", "one worker would read 1.8 times the mean of all, by files"),
        (Parts([5, 5]), 2, 5, "examples", "a batch of 5 is no multiple of 2 workers"),
        (np.arange(6), 2, 4, "examples", "each worker picks its own rows"),
        (
            tf.data.Dataset.range(6),
            *(2, 4, "examples", "one stream, of which each worker reads all and takes its part"),
        ),
    ],
)
def test_files_or_examples_are_chosen_with_a_reason(source, num_workers, size, by, reason):
    data = crew_of(lambda: source, num_workers, global_batch_size=size)[0]
    assert (data.by, data.reason) == (by, reason)
    assert crew_of(lambda: source, num_workers, global_batch_size=size, by="examples")[0].by == "examples"
    if "file" in reason and by != "files" and "times" not in reason:
        with pytest.raises(ValueError) as raised:
            crew_of(lambda: source, num_workers, global_batch_size=size, by="files")
        assert str(raised.value) == f"`by='files'` does not work here: {reason}. Use by='examples' or by='auto'."


@given(sizes=st.lists(st.integers(0, 100), max_size=12), num_workers=st.integers(1, 5))
@settings(derandomize=True, database=None, deadline=None)
def test_each_part_is_assigned_once_and_no_worker_has_much_more_than_it_must(sizes, num_workers):
    parts = assigned(sizes, num_workers)
    assert sorted(joined(parts)) == list(range(len(sizes)))
    loads = [sum(sizes[part] for part in own) for own in parts]
    assert max(loads) <= sum(sizes) / num_workers + max(sizes, default=0)


# Wrong input


@pytest.mark.parametrize(
    ("dataset", "options", "error", "message"),
    [
        (np.arange(4), {}, ValueError, "One of `global_batch_size` and `per_replica_batch_size` must be given."),
        (
            *(np.arange(4), {"global_batch_size": 4, "per_replica_batch_size": 4}),
            *(ValueError, "must be given. Received: both."),
        ),
        (np.arange(4), {"global_batch_size": 0}, ValueError, "`global_batch_size` must be at least 1. Received"),
        (np.arange(4), {"global_batch_size": 1.5}, TypeError, "`global_batch_size` must be an integer. Received"),
        (np.arange(4), {"global_batch_size": 2, "by": "file"}, ValueError, "`by` must be one of 'auto', 'files', "),
        (np.arange(4), {"global_batch_size": 2, "uneven": "no"}, ValueError, "`uneven` must be one of 'exact', 'drop'"),
        (
            np.arange(4),
            {"global_batch_size": 2, "seed": -1},
            ValueError,
            "`seed` must be at least 0. Received: seed=-1",
        ),
        (np.arange(4), {"global_batch_size": 2, "map": 3}, TypeError, "`map` must be a function of an example."),
        (np.arange(4), {"global_batch_size": 2, "cache": 1}, TypeError, "`cache` must be True or False."),
        (np.float32(3), {"global_batch_size": 2}, ValueError, "must have an axis of examples. Received: a scalar."),
        ((np.arange(4), np.arange(3)), {"global_batch_size": 2}, ValueError, "must have as many rows"),
        (generate(), {"global_batch_size": 2}, TypeError, "must be a function that returns a new iterator"),
        (lambda: iter([]), {"global_batch_size": 2}, ValueError, "`dataset` must give at least one example."),
        (3, {"global_batch_size": 2}, TypeError, "must be a tf.data.Dataset, arrays or tensors, pandas objects"),
        (tf.data.Dataset.range(4).repeat(), {"global_batch_size": 2}, ValueError, "`dataset` must end"),
        (
            *(tf.sparse.from_dense(np.eye(3)), {"global_batch_size": 2}),
            *(TypeError, "`dataset` must hold no sparse arrays"),
        ),
    ],
)
def test_wrong_input_is_refused_with_a_remedy(dataset, options, error, message):
    with pytest.raises(error) as raised:
        tfdp.data.shard(dataset, **options)
    assert message in str(raised.value)


def test_what_is_shared_already_is_refused():
    data = tfdp.data.shard(np.arange(4), global_batch_size=2)
    with pytest.raises(TypeError, match="`dataset` is distributed already: give it to `fit` as it is"):
        tfdp.data.shard(data, global_batch_size=2)


def test_an_order_that_cannot_be_shared_is_refused():
    with tf_seam.without_global_seed():
        dataset = tf.data.Dataset.range(10).shuffle(10).scan(tf.constant(0), lambda state, row: (state, row))
    with pytest.raises(ValueError, match=r"in a place from which it cannot be taken, before a step Scan\. Leave"):
        tfdp.data.shard(dataset, global_batch_size=2)


def test_padding_needs_targets_beside_which_weights_can_stand():
    data = tfdp.data.shard(np.arange(5), global_batch_size=2, uneven="pad")
    with pytest.raises(ValueError, match="`uneven='pad'` gives examples a weight, so they must be pairs"):
        data.local_batches()


def test_a_position_of_other_data_is_refused():
    data = tfdp.data.shard(np.arange(5), global_batch_size=2)
    state = {"epoch": 0, "legs": [[1, 2, 1]], "seed": 0, "by": "files", "own_streams": True}
    with pytest.raises(ValueError, match="The position is one of files"):
        data.position.deserialize(json.dumps(state))


def test_a_position_within_an_epoch_is_of_one_way_of_shuffling():
    data = tfdp.data.shard(np.arange(5), global_batch_size=2, shuffle_buffer=5)
    next(iter(data))
    other = tfdp.data.shard(np.arange(5), global_batch_size=2)
    with pytest.raises(ValueError) as raised:
        other.position.deserialize(data.position.serialize())
    assert str(raised.value) == (
        "A position within an epoch is of data that are shuffled as before. Expected: shuffle_buffer=5. Received: "
        "shuffle_buffer=0."
    )
    list(data)
    other.position.deserialize(data.position.serialize())
    assert other.epoch == 2


@pytest.mark.parametrize("text", ["{garbage", "[]", "{}", '{"epoch": -1, "legs": [], "seed": 0, "by": "files"}', "7"])
def test_what_is_no_position_is_refused(text):
    data = tfdp.data.shard(np.arange(5), global_batch_size=2)
    with pytest.raises(ValueError) as raised:
        data.position.deserialize(text)
    assert str(raised.value) == (
        f"The position must be what `position.serialize()` of sharded data gave. Received: {text!r}."
    )


def test_numbers_of_numpy_are_numbers():
    options = {"global_batch_size": np.int64(2), "shuffle_buffer": np.int32(5), "seed": np.int64(3)}
    data = tfdp.data.shard(np.arange(5), **options)
    assert json.loads(data.position.serialize())["seed"] == 3


# In Keras's hands

X = np.arange(40, dtype="float32")[:, np.newaxis] / 40
UNKNOWN = {
    "generator": lambda: lambda: ((row, row) for row in X),
    "filtered": lambda: tf.data.Dataset.from_tensor_slices((X, X)).filter(lambda *_: True),
    "files": lambda: Parts([13, 14, 13]),
}


def linear(loss="mse", units=1, **options):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(units, kernel_initializer="zeros", **options)])
    model.compile("sgd", loss)
    return model


def steps_of_fit(data, **options):
    steps = []
    count = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: steps.append(batch))
    as_column = {"map": lambda x, y: (tf.cast([x], tf.float32), tf.cast([y], tf.float32))}
    data = tfdp.data.shard(data, global_batch_size=4, **(as_column if isinstance(data, Parts) else {}))
    if "state" in options:
        data.position.deserialize(options.pop("state"))
    linear().fit(data, verbose=0, callbacks=[count], **options)
    return len(steps), data.position.serialize()


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.parametrize("name", UNKNOWN)
def test_the_position_at_the_end_of_an_epoch_is_the_begin_of_the_next_one(name):
    steps, state = steps_of_fit(UNKNOWN[name](), epochs=1)
    assert (steps, json.loads(state)["epoch"], json.loads(state)["legs"]) == (10, 1, [])
    steps, state = steps_of_fit(UNKNOWN[name](), epochs=2, state=state)
    assert (steps, json.loads(state)["epoch"], json.loads(state)["legs"]) == (20, 3, [])


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.parametrize("name", UNKNOWN)
@pytest.mark.parametrize(("taken", "left"), [(3, 7), (10, 10), (12, 10)])
def test_a_position_after_the_last_batch_is_the_begin_of_the_next_epoch(name, taken, left):
    _, state = steps_of_fit(UNKNOWN[name](), epochs=1)
    state = json.dumps({**json.loads(state), "legs": [[1, 4, taken]]})
    assert steps_of_fit(UNKNOWN[name](), epochs=1, state=state)[0] == left


def test_steps_per_epoch_take_the_data_as_they_go_on():
    steps, state = steps_of_fit((X, X), epochs=2, steps_per_epoch=4)
    assert (steps, json.loads(state)["epoch"], json.loads(state)["legs"]) == (8, 0, [[1, 4, 8]])


def test_classes_weigh_as_in_a_data_set():
    labels = np.arange(40) % 2

    def losses(data):
        model = linear("sparse_categorical_crossentropy", 2, activation="softmax")
        history = model.fit(data, class_weight={0: 1.0, 1: 5.0}, epochs=2, shuffle=False, verbose=0)
        return [*history.history["loss"], model.evaluate(data, verbose=0)]

    expected = losses(tf.data.Dataset.from_tensor_slices((X, labels)).batch(4))
    np.testing.assert_allclose(losses(tfdp.data.shard((X, labels), global_batch_size=4)), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"y": X}, "Received: a ndarray as `y`. Share pairs: tfdp.data.shard((x, y), ...)."),
        ({"sample_weight": X}, "Share triples: tfdp.data.shard((x, y, sample_weight), ...)."),
        ({"batch_size": 8}, "Received: batch_size=8. Give tfdp.data.shard its `global_batch_size`."),
    ],
)
def test_what_stands_beside_sharded_data_is_refused(given, message):
    (name,) = given
    with pytest.raises(ValueError) as raised:
        linear().fit(tfdp.data.shard((X, X), global_batch_size=4), verbose=0, **given)
    assert str(raised.value).startswith(f"`{name}` must not be given where `x` is what tfdp.data.shard returns.")
    assert message in str(raised.value)


def test_sharded_data_validate_beside_arrays_with_a_batch_size():
    data = tfdp.data.shard((X, X), global_batch_size=4)
    assert linear().fit(X, X, batch_size=8, validation_data=data, verbose=0).history["val_loss"]


def test_data_for_other_workers_than_the_model_has_are_refused():
    data = crew_of(lambda: (X, X), 2, global_batch_size=4)[0]
    with pytest.raises(ValueError) as raised:
        linear().fit(data, verbose=0)
    assert str(raised.value).startswith(
        "Data must be shared for the strategy of the model. Expected: 1 worker(s) of 1 replica(s), those of the "
    )
    assert "Received: data for 2 worker(s) of 1 replica(s). Give `strategy=` to tfdp.data.shard" in str(raised.value)


def test_what_is_no_strategy_is_refused():
    with pytest.raises(TypeError, match="`strategy` must be a strategy, such as"):
        tfdp.data.shard(X, strategy="mirrored", global_batch_size=4)


WITHOUT_A_STRATEGY = """
import keras, numpy as np, tfdp

x = np.arange(10, dtype="float32")[:, np.newaxis]
data = tfdp.data.shard((x, x), global_batch_size=4, shuffle_buffer=10, seed=0)
model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(data, epochs=3, verbose=0)
print("epoch", data.epoch)
"""


def test_epochs_go_on_where_no_strategy_was_ever_made():
    ended = workers.start(WITHOUT_A_STRATEGY).finish(60.0)
    assert ended.status == 0, ended.output
    assert "epoch 3" in ended.output
