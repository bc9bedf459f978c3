"""TensorBoard of one process is Keras's, and says what to install where it is missing."""

import importlib.util

import keras
import pytest
import trainings

import tfdp
from tfdp.callbacks import TensorBoard


def test_without_the_package_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError) as raised:
        TensorBoard("logs")
    assert "not installed. Install it: pip install 'tfdp[tensorboard]'." in str(raised.value)


def test_every_worker_is_true_or_false():
    with pytest.raises(TypeError, match=r"`every_worker` must be True or False. Received: every_worker=1."):
        TensorBoard("logs", every_worker=1)


def test_it_writes_the_files_that_keras_does(tmp_path):
    pytest.importorskip("tensorboard")
    x, y = trainings.regression(64)
    for name, callback in (
        ("keras", keras.callbacks.TensorBoard(tmp_path / "keras", histogram_freq=1, update_freq=1)),
        ("ours", TensorBoard(tmp_path / "ours", histogram_freq=1, update_freq=1, every_worker=True)),
    ):
        model = trainings.compiled(tfdp.MirroredStrategy())
        trainings.fit(model, x, y, epochs=2, callbacks=[callback], validation_data=(x, y))
        assert callback.log_dir == str(tmp_path / name)
    folders = [sorted(path.name for path in (tmp_path / name).iterdir()) for name in ("keras", "ours")]
    assert folders == [["train", "validation"]] * 2
    sizes = [[len(list((tmp_path / name / "train").glob("*")))] for name in ("keras", "ours")]
    assert sizes[0] == sizes[1]
