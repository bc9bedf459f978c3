"""An interrupted training goes on with the examples that it has not seen, and ends as if nothing had happened."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
import trainings
from interrupting import Interrupt, Interrupted

import tfdp
from tfdp.callbacks import DataPositionBackup

x, y = trainings.regression(49)
SOURCES = {
    "arrays": lambda: (x, y),
    "unknown": lambda: tf.data.Dataset.from_tensor_slices((x, y)).filter(lambda *_: True),
    "generator": lambda: lambda: zip(x, y, strict=True),
    "shuffled within": lambda: tf.data.Dataset.from_tensor_slices((x, y)).shuffle(49, seed=1).take(49),
}


def train(source, *callbacks_of, num_batches=None):
    """Trains three epochs of seven batches, or until it is interrupted; returns the model."""
    model = trainings.compiled(None)
    data = tfdp.data.shard(SOURCES[source](), global_batch_size=8, shuffle_buffer=100, seed=3)
    callbacks = [make(data) for make in callbacks_of]
    if num_batches is not None:
        with pytest.raises(Interrupted):
            model.fit(data, epochs=3, verbose=0, callbacks=[*callbacks, Interrupt(num_batches)])
    else:
        model.fit(data, epochs=3, verbose=0, callbacks=callbacks)
    return model


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(("num_batches", "save_freq"), [(3, 1), (9, 1), (9, "epoch")])
def test_a_training_goes_on_with_what_is_left_of_its_epoch(tmp_path, source, num_batches, save_freq):
    def callbacks(data):
        return DataPositionBackup(data, tmp_path / "data", save_freq=save_freq)

    def model_backup(data):
        return keras.callbacks.BackupAndRestore(tmp_path / "model", save_freq=save_freq)

    expected = train(source).get_weights()
    train(source, callbacks, model_backup, num_batches=num_batches)
    assert len(list((tmp_path / "data").iterdir())) == (1 if save_freq == "epoch" else 2)
    for received, weight in zip(train(source, callbacks, model_backup).get_weights(), expected, strict=True):
        np.testing.assert_array_equal(received, weight)
    assert not (tmp_path / "data").exists()


def test_a_position_that_is_not_there_is_said(tmp_path, caplog):
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "position-3.json").write_text("{}")
    data = tfdp.data.shard((x, y), global_batch_size=8)
    model = trainings.compiled(None)
    callback = DataPositionBackup(data, folder)
    callback.set_model(model)
    model.optimizer.iterations.assign(7)
    callback.on_epoch_begin(0)
    assert (
        f"has no position for iteration 7 of the model in {folder}: the data begins with a whole epoch" in caplog.text
    )


def test_files_are_whole_or_not_there(tmp_path):
    data = tfdp.data.shard((x, y), global_batch_size=8)
    callback = DataPositionBackup(data, tmp_path / "data", save_freq=2)
    callback.set_model(trainings.compiled(None))
    for batch in range(4):
        callback.on_train_batch_end(batch)
    (path,) = (tmp_path / "data").iterdir()
    assert json.loads(path.read_text()).keys() == {"epoch", "legs", "seed", "shuffle_buffer", "by", "own_streams"}


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        (("data", "folder"), {}, TypeError, "`data` must be what `tfdp.data.shard` returns. Received: 'data'."),
        ((None, "s3://bucket"), {}, ValueError, "`backup_dir` must be the path of a folder of a file system."),
        ((None, "folder"), {"save_freq": 0}, ValueError, "`save_freq` must be 'epoch' or at least 1."),
        ((None, "folder"), {"delete_checkpoint": 1}, TypeError, "`delete_checkpoint` must be True or False."),
    ],
)
def test_wrong_arguments_are_refused(arguments, options, error, message):
    data, folder = arguments
    with pytest.raises(error) as raised:
        DataPositionBackup(data or tfdp.data.shard((x, y), global_batch_size=8), folder, **options)
    assert message in str(raised.value)
