"""An audit finds nothing in data that are shared rightly, and says in words what is wrong with others."""

import dataclasses
import itertools
import json

import numpy as np
import pytest
import rich.console
import tensorflow as tf

import tfdp
from tfdp.data import Audit, Source, audit, auditing
from tfdp.data.findings import EpochAudit, WorkerEpoch

X = np.random.default_rng(0).normal(size=(41, 2)).astype("float32")
Y = np.arange(41) % 3


class Parts(Source):
    """Rows in parts, such as files."""

    name = "parts"

    def __init__(self, *parts, splits=False):
        self._parts, self.splits = parts, splits
        self.part_sizes = [len(part) for part in parts]

    def examples(self, parts=None):
        rows = [self._parts[part] for part in (range(len(self._parts)) if parts is None else parts)]
        rows = np.concatenate([np.zeros(0, np.int64), *rows]).astype(np.int64)
        return tf.data.Dataset.from_tensor_slices(rows).map(lambda row: (row, row % 2))

    def split(self, num_pieces, piece):
        return Parts(np.concatenate(self._parts)[piece::num_pieces])


class OverlappingPieces(Parts):
    """Rows of which each piece begins with the last one of the piece before."""

    def split(self, num_pieces, piece):
        rows = np.concatenate(self._parts)
        first, end = (len(rows) * index // num_pieces for index in (piece, piece + 1))
        return Parts(rows[max(first - 1, 0) : end])


def dataset():
    return tf.data.Dataset.from_tensor_slices((X, Y))


def with_workers(monkeypatch, change):
    """Has all workers give `change(worker, epoch, batches)` for their batches."""

    class Changed(auditing.SimulatedWorker):
        def local_batches(self, epoch=None):
            return change(self._layout.worker, epoch, super().local_batches(epoch))

    monkeypatch.setattr(auditing, "SimulatedWorker", Changed)


def two_workers(data=None, **options):
    options = {"num_workers": 2, "global_batch_size": 4, "seed": 0, "epochs": 1, **options}
    return audit((X[:24], Y[:24]) if data is None else data, **options)


def num_examples(found):
    return [[worker.num_examples for worker in epoch.workers] for epoch in found.epochs]


# What is right


@pytest.mark.parametrize(
    ("num_workers", "num_replicas", "uneven"),
    [(1, 2, "exact"), (2, 1, "pad"), (3, 1, "exact"), (4, 2, "drop"), (5, 1, "pad")],
)
def test_arrays_are_shared_rightly(num_workers, num_replicas, uneven):
    found = audit(
        (X, Y),
        num_workers=num_workers,
        num_replicas_per_worker=num_replicas,
        global_batch_size=10,
        shuffle_buffer=41,
        uneven=uneven,
    )
    assert found.problems == [] and found.is_right
    assert found.order_differs and found.order_repeats
    left_out, padded = {"exact": (0, 0), "drop": (1, 0), "pad": (0, 9)}[uneven]
    for epoch in found.epochs:
        assert len(epoch.workers) == num_workers
        assert sum(worker.num_examples for worker in epoch.workers) == 41 - left_out
        assert sum(worker.num_padded for worker in epoch.workers) == padded
        assert epoch.num_missing == left_out and epoch.num_duplicates == epoch.num_unknown == 0
        assert max(worker.num_steps for worker in epoch.workers) == 5 - left_out


@pytest.mark.parametrize(
    ("data", "num_workers", "uneven"),
    [
        (dataset(), 3, "drop"),
        (dataset().shuffle(20).batch(7), 2, "exact"),
        (dataset().map(lambda x, y: (x, y + 1)).padded_batch(7), 4, "pad"),
        (dataset().batch(7).map(lambda x, y: (x, y)), 5, "exact"),
    ],
    ids=["unbatched", "shuffled and batched", "mapped and padded", "with a map after batches"],
)
def test_tf_data_is_shared_rightly(data, num_workers, uneven):
    found = audit(data, num_workers=num_workers, global_batch_size=10, uneven=uneven, epochs=1)
    assert found.problems == []
    assert found.by == "examples" and found.num_examples == found.num_distinct == 41


@pytest.mark.parametrize("uneven", ["exact", "drop"])
def test_parts_of_many_sizes_are_shared_rightly(uneven):
    parts = Parts(*np.split(np.arange(40), [3, 13, 14, 25]))
    found = audit(
        parts, num_workers=3, by="files", global_batch_size=6, uneven=uneven, shuffle_buffer=8, cache=True, epochs=1
    )
    assert found.problems == [] and found.by == "files"
    assert num_examples(found)[0] == ([15, 12, 13] if uneven == "exact" else [12, 12, 12])
    assert found.num_droppable == (0 if uneven == "exact" else 4)


def test_equal_workers_of_one_piece_each_agree_on_the_steps_of_the_smallest():
    found = audit(Parts(np.arange(9), splits=True), num_workers=2, global_batch_size=2, uneven="drop", epochs=1)
    assert found.problems == []
    assert [worker.num_steps for worker in found.epochs[0].workers] == [4, 4]
    assert found.epochs[0].missing == (8,)


def test_equal_examples_are_no_duplicates():
    found = two_workers(np.zeros((9, 2)))
    assert found.is_right and found.num_distinct == 1 and found.order_differs is None


@pytest.mark.parametrize(
    "rows",
    [
        tf.ragged.constant([[1], [], [2, 3], [1, 1]]),
        tf.data.Dataset.from_tensor_slices(tf.sparse.from_dense(np.eye(4))),
        tf.data.Dataset.from_tensor_slices({"a": ["ab", "a", "", "b"], "b": ["c", "bc", "abc", "ac"]}),
        tf.data.Dataset.from_tensor_slices((["ab", "a", "", "b"], ["c", "bc", "abc", "ac"])),
    ],
    ids=["ragged", "sparse", "a dict", "strings that are equal when joined"],
)
def test_examples_of_any_structure_are_told_apart(rows):
    found = two_workers(rows)
    assert found.is_right and found.num_distinct == found.num_examples == 4


def test_what_map_does_at_random_is_no_fault():
    assert two_workers(map=lambda x, y: (x + tf.random.normal([2]), y)).is_right


def test_workers_and_replicas_are_those_of_the_strategy():
    with tfdp.MirroredStrategy(["CPU:0"]).scope():
        found = audit((X, Y), per_replica_batch_size=4, epochs=1)
    assert (found.num_workers, found.num_replicas_per_worker, found.global_batch_size) == (1, 1, 4)


def test_bytes_are_those_of_the_examples():
    assert [worker.num_bytes for worker in two_workers().epochs[0].workers] == [12 * 16, 12 * 16]
    assert two_workers(np.array(["a", "bcd"])).epochs[0].workers[1].num_bytes == 3


# Labels


def test_files_of_one_label_each_are_noted():
    found = audit(Parts(np.arange(0, 400, 2), np.arange(1, 400, 2)), num_workers=2, global_batch_size=4, epochs=1)
    assert found.is_right and found.labels == {0: 200, 1: 200}
    assert found.label_distance == 0.5 and found.bytes_balance == 1.0
    assert found.notes == [
        "The labels of workers 0 and 1 are not shared out as those of all data are: shuffle the examples before you "
        "write the files, or use by='examples'."
    ]


@pytest.mark.parametrize("label", [lambda x, y: tf.strings.as_string(y), 1])
def test_labels_are_found_by_a_function_or_an_index(label):
    assert set(map(str, two_workers(label=label).labels)) == {"0", "1", "2"}


@pytest.mark.parametrize(
    ("label", "message"),
    [
        ("z", "`label` must be a function of an example, or an index or key into it. Received: label='z' for (<tf."),
        (0, "`label` must give a scalar that is an integer, a string or a bool. Received: float32 of shape (2,)."),
    ],
)
def test_labels_that_are_not_there_are_refused(label, message):
    with pytest.raises(ValueError) as raised:
        two_workers(label=label)
    assert str(raised.value).startswith(message)


# What is wrong


def test_an_example_that_comes_twice_is_named(monkeypatch):
    with_workers(monkeypatch, lambda worker, epoch, batches: batches.concatenate(batches.take(1 - worker)))
    assert two_workers().problems == [
        "In epoch 0, 2 examples came more often than the data hold them, such as at positions 0 and 1 of the data.",
        "`fit` is told of 6 steps an epoch, where workers take up to 7.",
    ]


def test_pieces_that_overlap_are_found():
    found = audit(OverlappingPieces(np.arange(8), splits=True), num_workers=4, global_batch_size=4, epochs=1)
    assert found.problems == [
        "In epoch 0, 3 examples came more often than the data hold them, such as at positions 1, 3 and 5 of the data."
    ]


@pytest.mark.parametrize("uneven", ["exact", "pad"])
def test_examples_that_do_not_come_are_named(monkeypatch, uneven):
    with_workers(monkeypatch, lambda worker, epoch, batches: batches.skip(1) if epoch else batches)
    assert two_workers(uneven=uneven, epochs=2).problems == [
        "In epoch 1, 4 examples did not come, such as at positions 0, 1, 2 and 3 of the data."
    ]


def test_more_than_the_remainder_must_not_be_dropped(monkeypatch):
    with_workers(monkeypatch, lambda worker, epoch, batches: batches.skip(1))
    assert two_workers((X, Y), uneven="drop").problems == [
        "In epoch 0, 5 examples did not come, where 1 fill no batch.",
        "`fit` is told of 10 steps an epoch, where workers take up to 9.",
    ]


def test_workers_that_drop_without_asking_the_others_are_found(monkeypatch):
    monkeypatch.setattr(
        auditing.SimulatedWorker, "_agreed_steps", lambda worker, legs: worker._reader.num_own_steps(legs)
    )
    found = two_workers(Parts(np.arange(8), np.arange(8, 20)), by="files", uneven="drop")
    assert found.problems == [
        "In epoch 0, 0 examples did not come, where 4 fill no batch.",
        "In epoch 0, workers take 6 and 4 steps, where all must take as many with uneven='drop'.",
    ]


def test_batches_that_are_not_full_are_found(monkeypatch):
    with_workers(monkeypatch, lambda worker, epoch, batches: batches.unbatch().batch(2 - worker))
    assert two_workers(uneven="drop").problems[-2:] == [
        "In epoch 0, worker 1 got 12 rows in 12 steps, where full batches hold 24.",
        "`fit` is told of 6 steps an epoch, where workers take up to 12.",
    ]


def test_one_order_for_all_epochs_is_found(monkeypatch):
    first = auditing.SimulatedWorker.local_batches
    monkeypatch.setattr(auditing.SimulatedWorker, "local_batches", lambda worker, epoch: first(worker, 0))
    found = two_workers(shuffle_buffer=24, epochs=2)
    assert found.order_differs is False
    assert found.problems == [
        "Workers 0 and 1 took the examples of epochs 0 and 1 in the same order, although they are shuffled."
    ]


def test_one_order_by_chance_or_without_shuffling_is_no_fault():
    found = two_workers(epochs=2)
    assert found.order_differs is False and found.is_right
    assert audit(X[:1], global_batch_size=4, shuffle_buffer=4).is_right


def test_an_order_that_the_seed_does_not_settle_is_found(monkeypatch):
    with_workers(monkeypatch, lambda worker, epoch, batches: batches.shuffle(6) if worker else batches)
    tf.random.set_seed(0)
    found = two_workers()
    assert found.problems == ["Epoch 0 came in another order when it was read again with the same seed."]


def test_data_that_change_from_one_reading_to_the_next_are_found():
    numbers = itertools.count()
    assert two_workers(lambda: itertools.islice(numbers, 6)).problems == [
        "In epoch 0, 6 examples came that the data do not hold.",
        "In epoch 0, 6 examples did not come, such as at positions 0, 1, 2, 3 and 4 of the data.",
        "The data are not the same each time they are read: something in them is random, or changes them. Give it a "
        "fixed seed, or do it in `map`.",
        "Epoch 0 came in another order when it was read again with the same seed.",
    ]


def test_no_data_are_a_problem():
    assert two_workers(X[:0]).problems == ["The data hold no example."]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_workers": 0}, "`num_workers` must be at least 1. Received: num_workers=0."),
        ({"num_replicas_per_worker": 0}, "`num_replicas_per_worker` must be at least 1. Received: num_repl"),
        ({"epochs": 0}, "`epochs` must be at least 1. Received: epochs=0."),
        ({"global_batch_size": None}, "One of `global_batch_size` and `per_replica_batch_size` must be given."),
    ],
)
def test_arguments_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError) as raised:
        two_workers(**options)
    assert str(raised.value).startswith(message)


def test_padding_needs_pairs_as_in_training():
    with pytest.raises(ValueError, match=r"^`uneven='pad'` gives examples a weight, so they must be pairs"):
        two_workers(X, uneven="pad")


# How it reads


def facts(**changes):
    workers = tuple(
        WorkerEpoch(worker, 500 + worker, 32, 4000, 0, {"cat": 250 + worker, "dog": 250}, f"order {worker}")
        for worker in range(2)
    )
    return Audit(
        **{
            "source": "2 files",
            "num_examples": 1001,
            "num_distinct": 1001,
            "num_workers": 2,
            "num_replicas_per_worker": 4,
            "global_batch_size": 32,
            "shuffle_buffer": 0,
            "seed": 7,
            "uneven": "exact",
            "by": "files",
            "reason": "as was asked for",
            "num_droppable": 0,
            "num_promised_steps": None,
            "is_constant": True,
            "order_repeats": True,
            "labels": {"cat": 501, "dog": 500},
            "epochs": (EpochAudit(0, workers),),
            **changes,
        }
    )


def test_the_text_is_a_table_with_a_verdict():
    assert (
        str(facts())
        == """\
2 files: 1001 examples for 2 workers of 4 replicas, in batches of 32
by files: as was asked for

epoch worker examples steps bytes padded missing too often unknown
    0      0      500    32 4,000      0
    0      1      501    32 4,000      0
    0    all    1,001    32 8,000      0       0         0       0

each epoch has an order of its own         one epoch was read (not shuffled)
the same seed gives the same order         yes (seed 7)
bytes of the busiest worker, over the mean 1.000
labels of a worker, distance from all data 0.000 at most (2 labels)
sharded rightly                            yes"""
    )


def test_the_text_tells_what_is_wrong_and_what_is_worth_knowing():
    (epoch,) = facts().epochs
    slow = dataclasses.replace(epoch.workers[1], num_steps=33, num_bytes=8000)
    found = facts(epochs=(dataclasses.replace(epoch, workers=(epoch.workers[0], slow)),), num_promised_steps=32)
    assert str(found).splitlines()[-5:] == [
        "sharded rightly                            NO",
        "",
        "PROBLEM: `fit` is told of 32 steps an epoch, where workers take up to 33.",
        "Note: Workers take 32 and 33 steps: those that are done first go on with empty batches until the last one is.",
        "Note: One worker reads 1.33 times the mean of all, in bytes.",
    ]
    assert not found.is_right


def test_workers_without_a_row_are_noted():
    found = audit(X, num_workers=3, global_batch_size=2, epochs=1)
    assert found.is_right
    assert found.notes[-1] == "A batch of 2 has no row for worker 2: take a larger one, or fewer workers."


def test_a_table_fits_a_narrow_screen():
    console = rich.console.Console(width=80)
    with console.capture() as captured:
        console.print(facts().as_table())
    assert "too often" in captured.get() and "…" not in captured.get()


def test_the_dict_is_json():
    found = two_workers(shuffle_buffer=4, epochs=2)
    assert json.loads(json.dumps(found.as_dict())) == found.as_dict()
    assert found.as_dict()["is_right"] is True and found.as_dict()["epochs"][1]["steps_are_equal"] is True
