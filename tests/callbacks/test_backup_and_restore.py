"""An interrupted training goes on as if nothing had happened, from a backup that is whole or not there."""

import json
import os
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf
import trainings
from integration import workers
from interrupting import Interrupt, Interrupted

import tfdp
from tfdp.callbacks import BackupAndRestore
from tfdp.callbacks.backup_folder import BackupFolder

x, y = trainings.regression(49)
BATCHES = 7  # of an epoch of sharded data, in batches of 8
SOURCES = {
    "arrays": lambda: (x, y),
    "unknown": lambda: tf.data.Dataset.from_tensor_slices((x, y)).filter(lambda *_: True),
}


def train(folder, *, source="arrays", num_batches=None, epochs=3, model=None, kind=BackupAndRestore, **options):
    """Trains epochs of seven batches, or until it is interrupted; returns the model."""
    model = model or trainings.compiled(None)
    data = tfdp.data.shard(SOURCES[source](), global_batch_size=8, shuffle_buffer=100, seed=3)
    if kind is BackupAndRestore:
        options["data"] = data
    callbacks = [] if folder is None else [kind(folder, **options)]
    try:
        model.fit(data, epochs=epochs, verbose=0, callbacks=[*callbacks, Interrupt(num_batches or 1000)])
    except Interrupted:
        assert num_batches
    return model


def weights(model):
    return trainings.flat([*model.weights, *model.optimizer.variables])


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture(scope="module")
def uninterrupted():
    return {source: weights(train(None, source=source)).tobytes() for source in SOURCES}


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(("num_batches", "save_freq"), [(3, 1), (10, 2), (10, "epoch")])
def test_a_training_goes_on_bit_for_bit(tmp_path, uninterrupted, source, num_batches, save_freq):
    folder = tmp_path / "backup"
    train(folder, source=source, num_batches=num_batches, save_freq=save_freq)
    assert len(names(folder)) == 1
    assert weights(train(folder, source=source, save_freq=save_freq)).tobytes() == uninterrupted[source]
    assert not folder.exists()


@pytest.mark.parametrize("num_batches", [BATCHES, 3 * BATCHES])
def test_an_epoch_that_was_interrupted_right_after_its_last_batch_is_over(tmp_path, uninterrupted, num_batches):
    train(tmp_path, num_batches=num_batches, save_freq=1)
    model = train(tmp_path, save_freq=1)
    assert weights(model).tobytes() == uninterrupted["arrays"]
    assert len(model.history.history.get("loss", ())) == 3 - num_batches // BATCHES


def test_without_sharded_data_an_epoch_begins_anew_as_with_keras(tmp_path):
    received = []
    for kind in (BackupAndRestore, keras.callbacks.BackupAndRestore):
        callback = kind(tmp_path / kind.__module__, save_freq=2)
        for num_batches in (3, 1000):
            model = trainings.compiled(None)
            try:
                trainings.fit(model, x, y, callbacks=[callback, Interrupt(num_batches)])
            except Interrupted:
                continue
        received.append((weights(model).tobytes(), model.history.history["loss"]))
    assert received[0] == received[1]


def test_fit_begins_where_it_is_asked_to_after_a_training_that_went_on(tmp_path):
    train(tmp_path, num_batches=BATCHES + 1, epochs=2)
    model = train(tmp_path, epochs=2)
    assert len(model.history.history["loss"]) == 1
    assert len(train(None, model=model, epochs=2).history.history["loss"]) == 2


def test_data_are_those_that_fit_was_given(tmp_path, uninterrupted):
    for num_batches in (3, None):
        model = trainings.compiled(None)
        model._tfdp_training_data = tfdp.data.shard((x, y), global_batch_size=8, shuffle_buffer=100, seed=3)
        callbacks = [BackupAndRestore(tmp_path, save_freq=1), Interrupt(num_batches or 1000)]
        try:
            model.fit(model._tfdp_training_data, epochs=3, verbose=0, callbacks=callbacks)
        except Interrupted:
            assert num_batches
    assert weights(model).tobytes() == uninterrupted["arrays"]


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("moment", ["rename", "fsync", "save_weights"])
def test_a_save_that_fails_leaves_the_last_backup(tmp_path, monkeypatch, uninterrupted, double, moment):
    folder = tmp_path / "backup"
    options = {"save_freq": 2, "double_checkpoint": double}

    def fail(*arguments, **others):
        raise OSError(28, "No space left on device")

    class Fill(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 4:
                monkeypatch.setattr(self.model if moment == "save_weights" else os, moment, fail)

    model = trainings.compiled(None)
    data = tfdp.data.shard((x, y), global_batch_size=8, shuffle_buffer=100, seed=3)
    with pytest.raises(OSError, match="No space left"):
        model.fit(data, epochs=3, verbose=0, callbacks=[BackupAndRestore(folder, data=data, **options), Fill()])
    monkeypatch.undo()
    whole = [name for name in names(folder) if not name.endswith(".unfinished")]
    assert len(whole) == 2 if double else 1
    assert weights(train(folder, **options)).tobytes() == uninterrupted["arrays"]
    assert not folder.exists()


def test_a_backup_that_cannot_be_read_gives_way_to_the_one_before(tmp_path, caplog, uninterrupted):
    train(tmp_path, num_batches=5, save_freq=2, double_checkpoint=True)
    first, second = names(tmp_path)
    shutil.copytree(tmp_path / first, tmp_path / "kept")
    (tmp_path / second / "model.weights.h5").write_bytes(b"broken")
    model = train(tmp_path, save_freq=2, double_checkpoint=True, delete_checkpoint=False)
    assert f"cannot read {tmp_path / second / 'model.weights.h5'}, and takes the backup before" in caplog.text
    assert weights(model).tobytes() == uninterrupted["arrays"]
    for name in names(tmp_path):
        if name != "kept":
            (tmp_path / name / "model.weights.h5").write_bytes(b"broken")
    with pytest.raises(OSError):
        train(tmp_path)


def test_what_others_have_in_the_folder_stays(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "backup-7.unfinished").mkdir()
    (tmp_path / "backup-7.unfinished" / "notes.txt").write_text("mine")
    train(tmp_path, epochs=1)
    assert names(tmp_path) == ["backup-7.unfinished", "notes.txt"]


@pytest.mark.parametrize("double", [False, True])
def test_a_backup_of_keras_is_restored(tmp_path, double):
    for num_batches in (2 * BATCHES + 1, None):
        kind = keras.callbacks.BackupAndRestore if num_batches else BackupAndRestore
        model = train(tmp_path, num_batches=num_batches, kind=kind, double_checkpoint=double)
        if num_batches and double:
            (tmp_path / "latest.weights.h5").write_bytes(b"broken")
    assert len(model.history.history["loss"]) == 2 if double else 1
    assert not tmp_path.exists()


def test_a_backup_of_a_later_version_is_refused(tmp_path):
    train(tmp_path, num_batches=BATCHES + 1)
    (training,) = tmp_path.glob("*/training.json")
    training.write_text(json.dumps({"format": 99}))
    with pytest.raises(ValueError, match="is of format 99, this version of tfdp reads 1"):
        BackupFolder(tmp_path).backups()


def test_a_model_that_is_not_built_is_refused(tmp_path):
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match=r"must be built before tfdp.callbacks.BackupAndRestore can restore it"):
        model.fit(x, y, verbose=0, callbacks=[BackupAndRestore(tmp_path)])


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"backup_dir": "gs://bucket"}, ValueError, "`backup_dir` must be the path of a folder of a file system."),
        ({"backup_dir": ""}, ValueError, "`backup_dir` must be the path of a folder of a file system."),
        ({"save_freq": False}, TypeError, "`save_freq` must be 'epoch' or a number of batches."),
        ({"save_freq": 0}, ValueError, "`save_freq` must be 'epoch' or at least 1."),
        ({"double_checkpoint": 1}, TypeError, "`double_checkpoint` must be True or False. Received: 1."),
        ({"delete_checkpoint": 1}, TypeError, "`delete_checkpoint` must be True or False. Received: 1."),
        ({"data": "data"}, TypeError, "`data` must be what `tfdp.data.shard` returns. Received: 'data'."),
    ],
)
def test_wrong_arguments_are_refused(options, error, message):
    with pytest.raises(error) as raised:
        BackupAndRestore(**{"backup_dir": "backup", **options})
    assert message in str(raised.value)


# In a process of its own, with 2 logical CPUs and compression that remembers.
PROGRAM = """
import pathlib, sys
import keras
import tensorflow as tf
import tfdp, trainings
from callbacks.test_backup_and_restore import Interrupt, Interrupted, x, y

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)
folder = pathlib.Path(sys.argv[1])

def normalized():
    return keras.Sequential([
        keras.Input((8,)), trainings.dense(1024, 1), keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.3, seed=1), trainings.dense(1, 2),
    ])

def train(num_batches, callbacks):
    strategy = tfdp.MirroredStrategy(compression="int8")
    model = trainings.compiled(strategy, normalized, lambda: keras.optimizers.Adam(0.01))
    data = tfdp.data.shard((x, y), strategy=strategy, global_batch_size=8, shuffle_buffer=100, seed=3)
    try:
        model.fit(data, epochs=3, verbose=0, callbacks=[*callbacks(data), Interrupt(num_batches)])
    except Interrupted:
        pass
    return strategy, model

def interrupted(num_batches, save_freq):
    def callbacks(data):
        return [tfdp.callbacks.BackupAndRestore(folder / "backup", save_freq=save_freq, data=data)]
    train(num_batches, callbacks)
    files = sorted(path.name for path in (folder / "backup").rglob("*.*"))
    strategy, model = train(1000, callbacks)
    assert any(part.states for part in strategy.compression_state.parts())
    return {"weights": trainings.flat([*model.weights, *model.optimizer.variables]), "files": files}

def uninterrupted():
    checkpoint = tfdp.callbacks.ModelCheckpoint(folder / "model.keras")
    _, model = train(1000, lambda data: [checkpoint])
    return {"weights": trainings.flat([*model.weights, *model.optimizer.variables])}

trainings.record(folder, "uninterrupted", uninterrupted)
trainings.record(folder, "batches", lambda: interrupted(10, 2))
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """The folder of what the functions of the program returned."""
    folder = tmp_path_factory.mktemp("mirrored")
    (ended,) = workers.finish([workers.start(PROGRAM, folder)], deadline_seconds=120.0)
    assert ended.status == 0, workers.report([ended])
    return folder


def test_two_devices_go_on_bit_for_bit_with_what_compression_remembers(results):
    received = trainings.recorded(results, "batches")
    assert received["files"].tolist() == [
        "model.weights.h5",
        "part-0-of-2.npz",
        "part-1-of-2.npz",
        "training.json",
    ]
    expected = trainings.recorded(results, "uninterrupted")["weights"]
    np.testing.assert_array_equal(received["weights"], expected)
    assert not (results / "backup").exists()


def test_a_checkpoint_of_two_devices_has_the_weights_of_both(results):
    loaded = keras.models.load_model(results / "model.keras")
    weights = trainings.flat([*loaded.weights, *loaded.optimizer.variables])
    np.testing.assert_array_equal(weights, trainings.recorded(results, "uninterrupted")["weights"])
