"""A tf.data.Dataset is taken apart where it gives batches, and has an order that follows from seeds and the epoch."""

import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tfdp import tf_seam
from tfdp.data import Layout
from tfdp.data.sharding import shared

Dataset = tf.data.Dataset


def vectors(count=12):
    return Dataset.range(count).map(lambda row: tf.fill([3], row))


def ragged():
    return Dataset.from_tensor_slices(tf.ragged.constant([[1], [1, 2], [3]]))


def spelled(*shapes):
    """Returns a data set of which nothing but shapes is known."""
    signature = tuple(tf.TensorSpec(shape) for shape in shapes)
    return Dataset.from_generator(lambda: iter([]), output_signature=signature)


# Examples or batches


@pytest.mark.parametrize(
    ("make", "gives_batches"),
    [
        (lambda: vectors().batch(3).map(lambda rows: (rows * 2, rows[:, 0])), True),
        (lambda: vectors().batch(4, drop_remainder=True).map(lambda rows: rows).cache().repeat(2), True),
        (lambda: ragged().batch(2).map(lambda rows: rows), True),
        (lambda: Dataset.zip((vectors().batch(2).skip(1), vectors().batch(2).take(3))), True),
        (vectors, False),
        (ragged, False),
        (lambda: vectors().batch(3).unbatch(), False),
        (lambda: vectors().batch(3).map(lambda rows: (rows, tf.shape(rows)[0])), False),
        (lambda: Dataset.sample_from_datasets([vectors(), vectors()], seed=1), False),
        (lambda: Dataset.sample_from_datasets([Dataset.range(3), Dataset.range(3)], seed=1), False),
        (lambda: Dataset.zip((Dataset.range(3), vectors().batch(3))), False),
        (lambda: spelled([3], []), False),
        (lambda: spelled([3], [4]), False),
        (lambda: Dataset.zip((vectors(), vectors().batch(3))), None),
        (lambda: Dataset.range(50).batch(11).map(lambda row: (row[:-1], row[1:])), None),
        (lambda: Dataset.range(50).batch(11, drop_remainder=True).map(lambda row: (row[:-1], row[1:])), None),
        (lambda: spelled([None, 3]), None),
        (lambda: spelled([4, 3], [4]), None),
        (lambda: Dataset.range(20).window(5).flat_map(lambda rows: rows.batch(5)), None),
        (
            lambda: vectors().bucket_by_sequence_length(lambda row: tf.shape(row)[0], [2, 5], [2, 2, 2]),
            None,
        ),
    ],
)
def test_batches_are_told_from_examples_or_not_told(make, gives_batches):
    assert tf_seam.peeled(make()).gives_batches is gives_batches
    if gives_batches is None:
        with pytest.raises(ValueError, match="`dataset` must be known to give examples or batches") as raised:
            tfdp.data.shard(make(), global_batch_size=2)
        assert "batched=False (an element is one example) or batched=True" in str(raised.value)


def test_rows_that_are_sampled_stay_whole():
    data = tfdp.data.shard(Dataset.sample_from_datasets([vectors(4), vectors(4)], seed=1), global_batch_size=4)
    assert [batch.shape.as_list() for batch in data] == [[4, 3], [4, 3]]


def test_what_is_not_told_can_be_said():
    pairs = Dataset.range(44).batch(11, drop_remainder=True).map(lambda row: (row[:-1], row[1:]))
    examples = list(tfdp.data.shard(pairs, global_batch_size=2, batched=False))
    assert [x.shape.as_list() for x, _ in examples] == [[2, 10], [2, 10]]
    batches = list(tfdp.data.shard(pairs, global_batch_size=20, batched=True))
    assert [x.shape.as_list() for x, _ in batches] == [[20], [20]]
    sequences = tfdp.data.shard(vectors(4).batch(2), global_batch_size=1, batched=False)
    assert [batch.shape.as_list() for batch in sequences] == [[1, 2, 3], [1, 2, 3]]


@pytest.mark.parametrize(
    ("dataset", "batched", "error", "message"),
    [
        (
            np.arange(4),
            True,
            ValueError,
            "`batched` tells what a tf.data.Dataset gives. Received: batched=True for a nd",
        ),
        (Dataset.range(4), 1, TypeError, "`batched` must be True, False or None. Received: batched=1."),
    ],
)
def test_wrong_uses_of_batched_are_refused(dataset, batched, error, message):
    with pytest.raises(error) as raised:
        tfdp.data.shard(dataset, global_batch_size=2, batched=batched)
    assert str(raised.value).startswith(message)


# Order


SHUFFLED = {
    "mapped batches": lambda rows: rows.shuffle(20, seed=1).batch(2).map(lambda row: row + 0),
    "filtered": lambda rows: rows.shuffle(20, seed=1).filter(lambda row: row >= 0),
    "without a seed": lambda rows: rows.shuffle(20).take(20),
    "twice": lambda rows: rows.shuffle(5, seed=1).skip(0).shuffle(20, seed=1).repeat(1),
    "zipped": lambda rows: Dataset.zip((rows.shuffle(20, seed=1), rows)).map(lambda row, _: row).take(20),
    "concatenated": lambda rows: rows.take(10).shuffle(20, seed=1).concatenate(rows.skip(10)),
    "interleaved": lambda rows: rows.shuffle(20, seed=1).interleave(
        Dataset.from_tensors, num_parallel_calls=2, deterministic=False
    ),
    "in windows": lambda rows: rows.shuffle(20, seed=1).window(3).flat_map(lambda window: window),
    "grouped": lambda rows: rows.shuffle(20, seed=1).group_by_window(
        lambda row: row % 2, lambda key, window: window, window_size=3
    ),
    "counted": lambda rows: rows.shuffle(20, seed=1).unique().apply(tf.data.experimental.assert_cardinality(20)),
    "unbatched": lambda rows: rows.shuffle(20, seed=1).padded_batch(3).prefetch(1).unbatch(),
}


def rows_of(dataset, epoch, num_workers=1):
    read = []
    for worker in range(num_workers):
        layout = Layout(num_workers, worker, 1)
        source, options, reason = shared(dataset, layout, global_batch_size=4, seed=3)
        data = tfdp.data.ShardedDataset(source, options, layout, None, reason)
        read.append([row for batch in data.local_batches(epoch).as_numpy_iterator() for row in batch.tolist()])
    return read


@pytest.mark.parametrize("name", SHUFFLED)
def test_an_order_within_follows_from_the_seed_and_the_epoch_alone(name):
    def make():
        with tf_seam.without_global_seed():
            return SHUFFLED[name](Dataset.range(20))

    (first,), (second,) = (rows_of(make(), epoch) for epoch in (0, 1))
    assert sorted(first) == sorted(second) == list(range(20))
    assert first != second
    dataset = make()
    list(dataset), list(dataset)  # as if it had been looked at
    assert rows_of(dataset, 1) == [second]
    shares = rows_of(dataset, 1, 2)
    assert sorted(shares[0] + shares[1]) == list(range(20))
    assert set(shares[0][:2] + shares[1][:2]) == set(second[:4])


def test_an_order_that_is_to_stay_stays():
    dataset = Dataset.range(20).shuffle(20, seed=1, reshuffle_each_iteration=False).take(20)
    assert rows_of(dataset, 0) == rows_of(dataset, 1) == [[int(row) for row in dataset]]


def test_what_is_cached_keeps_its_order_and_is_read_once():
    reads = []

    def read(row):
        reads.append(int(row))
        return row

    rows = Dataset.range(6).map(lambda row: tf.numpy_function(read, [row], tf.int64)).shuffle(6, seed=1).cache()
    data = tfdp.data.shard(rows.map(tf.identity).filter(lambda row: True), global_batch_size=3)
    epochs = [[row for batch in data for row in batch.numpy().tolist()] for _ in range(3)]
    assert epochs[0] == epochs[1] == epochs[2] and sorted(reads) == list(range(6))


@pytest.mark.parametrize(
    "change",
    [
        lambda rows: rows.flat_map(lambda row: Dataset.range(4).shuffle(4)),
        lambda rows: rows.filter(lambda row: tf.random.uniform([]) < 0.5),
        lambda rows: rows.flat_map(lambda row: Dataset.range(4).map(tf.identity, 2, deterministic=False)),
        lambda rows: Dataset.sample_from_datasets([rows, rows]),
    ],
    ids=["shuffled in a function", "filtered at random", "as soon as it is there", "chosen at random"],
)
def test_chance_in_functions_is_refused_for_several_workers_and_not_resumed(change):
    with tf_seam.without_global_seed():
        dataset = change(Dataset.range(4))
    with pytest.raises(ValueError, match="functions that leave its order to chance") as raised:
        shared(dataset, Layout(2, 0, 1), global_batch_size=4)
    assert "Give a `seed` there, or leave it out and give `shuffle_buffer`" in str(raised.value)
    data = tfdp.data.shard(dataset, global_batch_size=2)
    next(iter(data))
    with pytest.raises(ValueError, match="A position within an epoch is of data that come in the same order again"):
        data.position.deserialize(data.position.serialize())


def test_seeds_in_functions_are_enough():
    dataset = Dataset.range(4).flat_map(lambda row: Dataset.range(4).shuffle(4, seed=1))
    shared(dataset, Layout(2, 0, 1), global_batch_size=4)


def test_an_audit_of_data_that_are_shuffled_within_finds_them_right():
    dataset = Dataset.range(20).shuffle(20, seed=1).batch(2).map(lambda row: row + 1)
    found = tfdp.data.audit(dataset, num_workers=2, global_batch_size=4)
    assert found.problems == []


# What names no data set


def test_a_split_of_something_else_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("a\n")
    for dataset, what in ((np.arange(3), "a ndarray"), (str(tmp_path / "a.txt"), "files")):
        with pytest.raises(ValueError) as raised:
            tfdp.data.shard(dataset, global_batch_size=2, split="train")
        assert str(raised.value) == (
            f"`split` is of a data set of TensorFlow Datasets. Received: split='train' for {what}. Leave it out."
        )


def test_arrays_of_names_of_files_are_files_and_others_are_strings(tmp_path):
    names = [str(tmp_path / name) for name in ("a.txt", "b.txt")]
    for name in names:
        with open(name, "w") as file:
            file.write("line\n")
    assert [batch.numpy().tolist() for batch in tfdp.data.shard(np.array(names), global_batch_size=2)] == [
        [b"line"] * 2
    ]
    words = np.array(["a.txt", "no.txt"])
    assert [batch.numpy().tolist() for batch in tfdp.data.shard(words, global_batch_size=2)] == [[b"a.txt", b"no.txt"]]
