"""What becomes of Keras's callbacks that several workers were given."""

import logging

import keras
import pytest

from tfdp import callbacks as ours
from tfdp.callbacks.habits import adapted

theirs = keras.callbacks


class Workers:
    """Stands for the strategy of one of several workers, of whom all others have been given the callbacks `others`."""

    def __init__(self, worker, *others):
        self.worker, self.num_workers, self._others = worker, len(others) + 1, others

    def everyones(self, topic, value):
        marks = []
        for callbacks in self._others:
            with pytest.raises(Asked) as asked:
                adapted(callbacks, Asking())
            marks.append(asked.value.args[0])
        marks.insert(self.worker, [list(mark) for mark in value])
        return marks


class Asked(Exception):
    pass


class Asking:
    num_workers = 2

    def everyones(self, topic, value):
        raise Asked([list(mark) for mark in value])


def all_kinds(folder):
    return [
        theirs.ModelCheckpoint(f"{folder}/model.keras"),
        theirs.BackupAndRestore(f"{folder}/backup"),
        theirs.CSVLogger(f"{folder}/log.csv"),
        theirs.TensorBoard(f"{folder}/logs"),
        theirs.EarlyStopping(),
    ]


@pytest.mark.parametrize("worker", [0, 1])
def test_callbacks_of_one_path_become_those_of_tfdp_and_stay_the_same_objects(worker, caplog, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    callbacks = all_kinds(tmp_path)
    with caplog.at_level(logging.INFO, "tfdp"):
        received = adapted(callbacks, Workers(worker, all_kinds(".")))
    assert received == callbacks
    assert [type(one) for one in received] == [
        ours.ModelCheckpoint,
        ours.BackupAndRestore,
        ours.CSVLogger,
        ours.TensorBoard,
        theirs.EarlyStopping,
    ]
    assert {(one.tfdp_writer, one.tfdp_is_everywhere) for one in received[:4]} == {(0, True)}
    (message,) = caplog.messages
    assert f"writes: ModelCheckpoint of {tmp_path / 'model.keras'} (worker 0), BackupAndRestore of" in message


def test_callbacks_with_paths_of_their_own_stay_as_they_are(caplog):
    callbacks = all_kinds("a")
    with caplog.at_level(logging.INFO, "tfdp"):
        adapted(callbacks, Workers(0, all_kinds("b")))
    assert all(type(one).__module__.startswith("keras.") for one in callbacks)
    assert caplog.text == ""


def test_a_class_made_from_keras_keeps_its_own_methods_before_those_of_tfdp():
    class Mine(theirs.ModelCheckpoint):
        def on_epoch_end(self, epoch, logs=None):
            super().on_epoch_end(epoch, logs)

    callback = Mine("model.keras")
    callback.best = 3.0
    adapted([callback], Workers(1, [theirs.ModelCheckpoint("model.keras")]))
    assert isinstance(callback, Mine)
    assert isinstance(callback, ours.ModelCheckpoint)
    assert type(callback).__name__ == "Mine"
    order = type(callback).__mro__
    assert order.index(Mine) < order.index(ours.ModelCheckpoint) < order.index(theirs.ModelCheckpoint)
    assert callback.best == 3.0


def test_a_callback_of_the_chief_alone_meets_nobody():
    for callback in (theirs.ModelCheckpoint("a.keras"), ours.ModelCheckpoint("a.keras"), ours.CSVLogger("a.csv")):
        adapted([callback], Workers(0, [], [theirs.EarlyStopping()]))
        assert (callback.tfdp_writer, callback.tfdp_is_everywhere) == (0, False)
    callback = theirs.CSVLogger("a.csv")
    adapted([callback], Workers(0, []))
    assert type(callback) is theirs.CSVLogger


def test_the_first_of_those_that_share_writes():
    callback = theirs.CSVLogger("a.csv")
    adapted([callback], Workers(2, [], [theirs.CSVLogger("a.csv")]))
    assert (callback.tfdp_writer, callback.tfdp_is_everywhere) == (1, False)


def test_those_of_tfdp_belong_together():
    for own, others in (
        (ours.BackupAndRestore("a"), ours.BackupAndRestore("b")),
        (ours.CSVLogger("a"), ours.CSVLogger("a")),
    ):
        adapted([own], Workers(1, [others]))
        assert own.tfdp_is_everywhere


@pytest.mark.parametrize(
    ("own", "others"),
    [
        ([theirs.BackupAndRestore("a")], [[]]),
        ([], [[ours.BackupAndRestore("a")]]),
        ([ours.BackupAndRestore("a")], [[theirs.BackupAndRestore("a")]]),
        ([theirs.BackupAndRestore("a")], [[theirs.BackupAndRestore("a")], [theirs.BackupAndRestore("b")]]),
    ],
)
def test_backups_that_only_some_would_restore_are_refused(own, others):
    with pytest.raises(ValueError, match="BackupAndRestore must be given to all workers, with the same folder"):
        adapted(own, Workers(0, *others))


def test_a_callback_list_is_left_alone():
    callbacks = theirs.CallbackList([theirs.CSVLogger("a.csv")])
    assert adapted(callbacks, Workers(0, [theirs.CSVLogger("a.csv")])) is callbacks
    assert type(callbacks.callbacks[0]) is theirs.CSVLogger


def test_one_worker_asks_nobody():
    callbacks = all_kinds("a")
    assert adapted(callbacks, None) is callbacks
    assert type(callbacks[0]) is theirs.ModelCheckpoint


def test_a_class_that_cannot_become_one_of_tfdp_is_named():
    class Odd(theirs.CSVLogger):
        __slots__ = ("slot",)

        def __setattr__(self, name, value):
            if name == "__class__":
                raise TypeError("object layout differs")
            super().__setattr__(name, value)

    with pytest.raises(ValueError, match=r"Odd would write to one path .* object layout differs"):
        adapted([Odd("a.csv")], Workers(0, [theirs.CSVLogger("a.csv")]))
