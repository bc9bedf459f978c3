"""The callback that saves a model while it trains: one whole file, written by one worker."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras

from tfdp.callbacks.one_writer import OneWriter, reading_alone, swapped
from tfdp.callbacks.together import number_told_by, raise_together
from tfdp.callbacks.whole_files import written_whole


class ModelCheckpoint(OneWriter, keras.callbacks.ModelCheckpoint):
    """Saves the model or its weights, as `keras.callbacks.ModelCheckpoint` does, whose arguments it takes.

    Give it to all workers. The chief writes, under a name beside the final one, which a file has as soon as it is
    whole: what is there can be loaded, whenever a process dies. All workers know the same `best`, that of the chief,
    and wait until the chief has written. Where it cannot, all of them raise.

    In the file the counts of metrics that the model itself holds are those of the chief's replicas.

    Example:
        >>> callbacks = [ModelCheckpoint("/tmp/best.keras", monitor="val_loss", save_best_only=True)]
    """

    _was_asked_to_save = False

    def set_model(self, model: keras.Model) -> None:
        super().set_model(model)
        if not self._writes():
            self.verbose = 0

    @property
    def model(self) -> Any:
        """The model, which saves whole files on the worker that writes, and nothing on others."""
        model = super().model
        return None if model is None else _SavingModel(model, self)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        with self._together():
            super().on_train_batch_end(batch, logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        with self._together():
            super().on_epoch_end(epoch, self._with_writers_value(logs))

    def save_by(self, save: Any, filepath: Any, *args: Any, **kwargs: Any) -> None:
        """Calls a model's `save` or `save_weights` with another path, if this worker writes."""
        self._was_asked_to_save = True
        if not self._writes():
            return
        with reading_alone(self._strategy()):
            if "://" in str(filepath):
                save(filepath, *args, **kwargs)
                return
            with written_whole(Path(filepath)) as unfinished:
                save(str(unfinished), *args, **kwargs)

    @contextlib.contextmanager
    def _together(self) -> Iterator[None]:
        """Raises on all workers where one raises while it saves."""
        self._was_asked_to_save, error = False, None
        try:
            with contextlib.ExitStack() as stack:
                if not self._writes():  # Keras makes the folder
                    stack.enter_context(swapped(self, "filepath", os.path.basename(self.filepath)))
                yield
        except Exception as raised:
            error = raised
        if self._meets_others() and (self._was_asked_to_save or error is not None):
            raise_together(self._strategy(), "ModelCheckpoint", error)
        elif error is not None:
            raise error

    def _with_writers_value(self, logs: Any) -> Any:
        """Returns `logs` with the value of the worker that writes for what is monitored."""
        if not self.save_best_only or not self._meets_others():
            return logs
        own = (logs or {}).get(self.monitor)
        try:
            own = None if own is None else float(own)
        except (TypeError, ValueError):  # no scalar, which Keras has a warning for
            own = None
        value = number_told_by(self._strategy(), self.tfdp_writer, own)
        return logs if value is None else {**(logs or {}), self.monitor: value}


class _SavingModel:
    """A model in all but `save` and `save_weights`."""

    def __init__(self, model: keras.Model, callback: ModelCheckpoint) -> None:
        object.__setattr__(self, "_tfdp_model", model)
        object.__setattr__(self, "_tfdp_callback", callback)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # of the model, for isinstance
        return type(self._tfdp_model)

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "_tfdp_model"), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._tfdp_model, name, value)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._tfdp_model(*args, **kwargs)

    def save(self, filepath: Any, *args: Any, **kwargs: Any) -> None:
        self._tfdp_callback.save_by(self._tfdp_model.save, filepath, *args, **kwargs)

    def save_weights(self, filepath: Any, *args: Any, **kwargs: Any) -> None:
        self._tfdp_callback.save_by(self._tfdp_model.save_weights, filepath, *args, **kwargs)
