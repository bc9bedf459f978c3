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
