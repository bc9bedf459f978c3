"""The callback that writes losses and metrics of each epoch to one CSV file, by one worker."""

import os
from typing import Any

import keras

from tfdp.callbacks.one_writer import OneWriter, swapped


class CSVLogger(OneWriter, keras.callbacks.CSVLogger):
    """Writes what `keras.callbacks.CSVLogger` does, whose arguments it takes, on the chief alone.

    Give it to all workers. Where the chief cannot open the file, all of them raise.

    Example:
        >>> callbacks = [CSVLogger("/tmp/training.csv", append=True)]
    """

    def on_train_begin(self, logs: Any = None) -> None:
        with self._failing_together(), swapped(self, "filename", self.filename if self._writes() else os.devnull):
            super().on_train_begin(logs)
