"""When and where callbacks save beside Keras's backup of a model."""

import os
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf


class SaveFrequency:
    """Counts batches as `keras.callbacks.BackupAndRestore` does, with `steps_per_execution` too."""

    def __init__(self, save_freq: str | int) -> None:
        """Counts for `save_freq`: "epoch", or after how many batches to save.

        Raises:
            TypeError: it is neither.
            ValueError: it is less than 1.
        """
        self._save_freq = checked_save_freq(save_freq)
        self._since_save, self._last_batch = 0, 0

    def is_due_after_batch(self, batch: int) -> bool:
        """Returns whether to save after a batch of an epoch."""
        if self._save_freq == "epoch":
            return False
        self._since_save += batch + 1 if batch <= self._last_batch else batch - self._last_batch
        self._last_batch = batch
        if self._since_save < self._save_freq:
            return False
        self._since_save = 0
        return True

    def is_due_after_epoch(self) -> bool:
        """Returns whether to save at the end of an epoch."""
        self._last_batch = 0
        return self._save_freq == "epoch"


class SavingCallback(keras.callbacks.Callback):
    """A callback that saves beside Keras's backup of a model, and restores when that has been restored."""

    def __init__(self, backup_dir: Any, save_freq: str | int, delete_checkpoint: bool) -> None:
        """Checks the arguments that these callbacks have in common.

        Raises:
            TypeError: an argument is of the wrong type.
            ValueError: an argument is out of range.
        """
        super().__init__()
        self._folder = checked_folder(backup_dir)
        self._frequency = SaveFrequency(save_freq)
        self._deletes = checked_delete_checkpoint(delete_checkpoint)
        self._has_begun = False

    def on_train_begin(self, logs: Any = None) -> None:
        self._has_begun = False

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        # Not in on_train_begin: whatever the order of the callbacks, the model has been restored by now.
        if not self._has_begun:
            self._has_begun = True
            self.restore()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._frequency.is_due_after_batch(batch):
            self.save(is_epoch_over=False)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self._frequency.is_due_after_epoch():
            self.save(is_epoch_over=True)

    def on_train_end(self, logs: Any = None) -> None:
        if self._deletes:
            self.delete()

    def save(self, *, is_epoch_over: bool) -> None:
        """Saves what belongs to the model as it is now, within an epoch of `fit` or at its end."""
        raise NotImplementedError

    def restore(self) -> None:
        """Restores what belongs to the model as it is now."""
        raise NotImplementedError

    def delete(self) -> None:
        """Removes all that was saved."""
        raise NotImplementedError


def iteration_of(model: keras.Model) -> int:
    """Returns how many updates a model has had."""
    optimizer = getattr(model, "optimizer", None)
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)  # which LossScaleOptimizer of older Keras does not ask
    return 0 if optimizer is None else int(tf.convert_to_tensor(optimizer.iterations))


def checked_folder(backup_dir: Any) -> Path:
    """Returns the path of a folder, or raises what is wrong with it."""
    if not isinstance(backup_dir, str | os.PathLike):
        raise TypeError(f"`backup_dir` must be the path of a folder. Received: {backup_dir!r}.")
    path = os.fspath(backup_dir)
    if not isinstance(path, str) or not path or "://" in path:
        raise ValueError(f"`backup_dir` must be the path of a folder of a file system. Received: {backup_dir!r}.")
    return Path(path)


def checked_save_freq(save_freq: Any) -> Any:
    """Returns `save_freq`, or raises what is wrong with it."""
    if save_freq == "epoch":
        return save_freq
    if isinstance(save_freq, bool) or not isinstance(save_freq, int):
        raise TypeError(f"`save_freq` must be 'epoch' or a number of batches. Received: save_freq={save_freq!r}.")
    if save_freq < 1:
        raise ValueError(f"`save_freq` must be 'epoch' or at least 1. Received: save_freq={save_freq}.")
    return save_freq


def checked_delete_checkpoint(delete_checkpoint: Any) -> bool:
    """Returns `delete_checkpoint`, or raises what is wrong with it."""
    if not isinstance(delete_checkpoint, bool):
        raise TypeError(f"`delete_checkpoint` must be True or False. Received: {delete_checkpoint!r}.")
    return delete_checkpoint
