"""Checkpoints are whole files that load without tfdp, and say what Keras's say."""

import os

import keras
import numpy as np
import pytest
import trainings

import tfdp
from tfdp.callbacks import ModelCheckpoint
from tfdp.callbacks.saving import iteration_of

x, y = trainings.regression(64)
STRATEGIES = {"none": lambda: None, "mirrored": tfdp.MirroredStrategy}


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def with_batch_normalization():
    return keras.Sequential(
        [keras.Input((8,)), trainings.dense(8, 1), keras.layers.BatchNormalization(), trainings.dense(1, 2)]
    )


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", ["model.keras", "model.h5"])
def test_a_whole_model_loads_and_has_the_same_weights(tmp_path, strategy, name):
    model = trainings.compiled(STRATEGIES[strategy](), with_batch_normalization)
    trainings.fit(model, x, y, epochs=2, callbacks=[ModelCheckpoint(tmp_path / "new" / name)])
    assert names(tmp_path / "new") == [name]
    has_optimizer = name.endswith(".keras")  # Keras does not find "mse" again in its older format
    loaded = keras.models.load_model(tmp_path / "new" / name, compile=has_optimizer)
    assert trainings.flat(loaded.weights).tobytes() == trainings.flat(model.weights).tobytes()
    assert not has_optimizer or iteration_of(loaded) == iteration_of(model) > 0


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_it_saves_when_and_says_what_keras_does(tmp_path, capsys, strategy):
    results = []
    options = {"save_weights_only": True, "save_best_only": True, "monitor": "mae", "verbose": 1, "save_freq": 1}
    for folder, kind in ((tmp_path / "a", keras.callbacks.ModelCheckpoint), (tmp_path / "b", ModelCheckpoint)):
        callback = kind(folder / "{epoch}-{mae:.3f}.weights.h5", mode="min", **options)
        callback.monitor_op = np.less  # which Keras sets at the end of the first epoch only
        trainings.fit(trainings.compiled(STRATEGIES[strategy]()), x, y, epochs=2, callbacks=[callback])
        results.append((names(folder), callback.best, capsys.readouterr().out.replace(str(folder), "")))
    assert results[0] == results[1]
    assert results[0][2]


def test_a_failure_within_a_write_leaves_the_last_file(tmp_path, monkeypatch):
    path = tmp_path / "model.keras"
    model = trainings.compiled(None)
    trainings.fit(model, x, y, epochs=1, callbacks=[ModelCheckpoint(path)])
    before = path.read_bytes()

    def fail(descriptor):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched, pytest.raises(OSError, match="No space left"):
        patched.setattr(os, "fsync", fail)
        trainings.fit(model, x, y, epochs=1, callbacks=[ModelCheckpoint(path)])
    assert names(tmp_path) == ["model.keras"]
    assert path.read_bytes() == before


def test_a_path_of_a_folder_is_refused_as_by_keras(tmp_path):
    (tmp_path / "model.keras").mkdir()
    with pytest.raises(OSError, match="Please specify a non-directory filepath"):
        trainings.fit(
            trainings.compiled(None), x, y, epochs=1, callbacks=[ModelCheckpoint(str(tmp_path / "model.keras"))]
        )
    assert names(tmp_path) == ["model.keras"]


def test_the_model_of_the_callback_is_the_model_in_all_else():
    class Ours(ModelCheckpoint):
        def on_epoch_end(self, epoch, logs=None):
            assert isinstance(self.model, keras.Sequential)
            assert self.model(x).shape == (64, 1)
            assert self.model.predict(x, verbose=0).shape == (64, 1)
            self.model.stop_training = True

    model = trainings.compiled(None)
    assert len(trainings.fit(model, x, y, epochs=3, callbacks=[Ours("never.keras")]).history["loss"]) == 1
    assert ModelCheckpoint("never.keras").model is None


def test_paths_that_are_no_files_go_to_keras_as_they_are(monkeypatch):
    saved = []
    model = trainings.compiled(None)
    monkeypatch.setattr(model, "save", lambda path, **options: saved.append(path))
    callback = ModelCheckpoint("gs://bucket/model.keras")
    callback.set_model(model)
    callback.model.save("gs://bucket/model.keras")
    assert saved == ["gs://bucket/model.keras"]
