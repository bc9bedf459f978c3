"""The callback that saves what compression remembers beside Keras's backup of the model."""

import logging
import os
from typing import Any

import keras

from tfdp.callbacks.compression_parts import CompressionParts
from tfdp.callbacks.saving import SavingCallback, iteration_of

_LOG = logging.getLogger("tfdp")


class CompressionStateBackup(SavingCallback):
    """Saves what compression remembers (residuals of error feedback) beside `keras.callbacks.BackupAndRestore`.

    A training that was interrupted and is started again goes on as if nothing had happened: bit for bit, on the same
    number of replicas. On another number the residuals of all are shared out among the new ones; one replica alone has
    no use for them. Without a strategy of tfdp, or with compression that remembers nothing, this callback does nothing.

    Give both callbacks the same `save_freq`, and put this one first: the parts of its last two saves are kept, so that
    those of the model's backup are there even where a process dies between the two.

    Every worker writes the parts of its own replicas, each whole or not at all. Give all workers one folder that they
    share, or each one of its own where the number of replicas stays the same. Where parts are missing or broken, a
    warning says so and compression starts anew, on all workers alike; the model trains on from its backup. In a process
    that has trained already, go on with the same model, or make the strategy anew with it.

    Example:
        >>> callbacks = [
        ...     CompressionStateBackup("/tmp/digits/compression"),
        ...     keras.callbacks.BackupAndRestore("/tmp/digits/worker-0"),
        ... ]
    """

    def __init__(
        self, backup_dir: str | os.PathLike[str], *, save_freq: str | int = "epoch", delete_checkpoint: bool = True
    ) -> None:
        """Saves into `backup_dir`.

        Args:
            backup_dir: a folder of a file system for this training alone, made when needed; not the one of
                `BackupAndRestore`.
            save_freq: "epoch" to save at the end of each epoch, or after how many batches to save.
            delete_checkpoint: whether the files are removed when the training has come to its end.

        Raises:
            TypeError: an argument is of the wrong type.
            ValueError: an argument is out of range.
        """
        super().__init__(backup_dir, save_freq, delete_checkpoint)
        self._parts: CompressionParts | None = None
        self._kept: list[int] = []
        self._iteration_before = 0

    def set_model(self, model: keras.Model) -> None:
        super().set_model(model)
        self._iteration_before = iteration_of(model)

    def on_train_begin(self, logs: Any = None) -> None:
        super().on_train_begin(logs)
        self._parts, self._kept = None, []

    def save(self, *, is_epoch_over: bool) -> None:
        if self._parts is None:
            return
        iteration = iteration_of(self.model)
        self._parts.write(iteration)
        self._kept = [*(kept for kept in self._kept if kept != iteration), iteration][-2:]
        self._parts.keep(self._kept)

    def restore(self) -> None:
        self._parts = parts = CompressionParts.of(self.model, self._folder)
        if parts is None:
            return
        iteration = iteration_of(self.model)
        reason = parts.restore(iteration or None)
        if reason is None:
            self._kept = [iteration]
        elif iteration != self._iteration_before:
            _warn(iteration, reason)
            parts.start_anew()
        elif iteration and parts.are_missed():
            _warn(iteration, reason)

    def delete(self) -> None:
        if (parts := CompressionParts.of(self.model, self._folder)) is not None:
            parts.keep([])


def _warn(iteration: int, reason: str) -> None:
    _LOG.warning(
        "tfdp: CompressionStateBackup cannot restore what compression remembered at iteration %d of the model: %s. "
        "Compression starts anew. (A number of replicas other than before needs the parts of all, in a `backup_dir` "
        "that all workers share.)",
        iteration,
        reason,
    )
