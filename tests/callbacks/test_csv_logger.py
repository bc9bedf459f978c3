"""The log of one process is Keras's."""

import keras
import trainings

import tfdp
from tfdp.callbacks import CSVLogger

x, y = trainings.regression(64)


def test_it_writes_what_keras_does_and_goes_on(tmp_path):
    for strategy in (None, tfdp.MirroredStrategy()):
        for path, kind in ((tmp_path / "a.csv", keras.callbacks.CSVLogger), (tmp_path / "b.csv", CSVLogger)):
            path.unlink(missing_ok=True)
            for _ in range(2):
                model = trainings.compiled(strategy)
                callback = kind(path, separator=";", append=True)
                trainings.fit(model, x, y, epochs=2, callbacks=[callback])
                assert callback.filename == str(path)
        assert (tmp_path / "a.csv").read_text() == (tmp_path / "b.csv").read_text()
        assert len((tmp_path / "b.csv").read_text().splitlines()) == 5
