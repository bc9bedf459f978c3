"""The callback that saves what compression remembers beside Keras's backup of the model."""

import logging
import os
from typing import Any

import keras
import tensorflow as tf

from tfdp.callbacks.part_files import PartFiles
from tfdp.callbacks.saving import SaveFrequency, checked_delete_checkpoint, checked_folder, iteration_of
from tfdp.compression_state import CompressionState, Part

_LOG = logging.getLogger("tfdp")


class CompressionStateBackup(keras.callbacks.Callback):
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
        super().__init__()
        self._folder = checked_folder(backup_dir)
        self._frequency = SaveFrequency(save_freq)
        self._deletes = checked_delete_checkpoint(delete_checkpoint)
        self._files: PartFiles | None = None
        self._kept: list[int] = []
        self._iteration_before = 0
        self._has_begun = False

    def set_model(self, model: keras.Model) -> None:
        super().set_model(model)
        self._iteration_before = iteration_of(model)

    def on_train_begin(self, logs: Any = None) -> None:
        self._has_begun, self._files, self._kept = False, None, []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        # Not in on_train_begin: whatever the order of the callbacks, the model has been restored by now.
        if self._has_begun:
            return
        self._has_begun = True
        state = _state(self.model)
        if state is not None:
            self._files = PartFiles(self._folder, state.ranks, state.num_members)
            self._restore(self._files, state)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._frequency.is_due_after_batch(batch):
            self._save()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self._frequency.is_due_after_epoch():
            self._save()

    def on_train_end(self, logs: Any = None) -> None:
        if self._deletes and (state := _state(self.model)) is not None:
            PartFiles(self._folder, state.ranks, state.num_members).keep(set())

    def _save(self) -> None:
        if self._files is None:
            return
        iteration = iteration_of(self.model)
        self._files.write(iteration, self.model.distribute_strategy.compression_state.parts())
        self._kept = [*(kept for kept in self._kept if kept != iteration), iteration][-2:]
        self._files.keep(set(self._kept))

    def _restore(self, files: PartFiles, state: CompressionState) -> None:
        iteration = iteration_of(self.model)
        parts: list[Part] = []
        reason = "another worker has not found its parts"
        if iteration:
            try:
                parts = files.read(iteration)
            except LookupError as error:
                reason = str(error)
        if _all_agree(self.model.distribute_strategy, iteration, parts[0].num_members if parts else 0):
            state.restore(parts)
            self._kept = [iteration]
        elif iteration != self._iteration_before:
            _warn(iteration, reason)
            state.restore([])
        elif iteration and files.has_any() and not any(part.states for part in state.parts()):
            _warn(iteration, reason)


def _warn(iteration: int, reason: str) -> None:
    _LOG.warning(
        "tfdp: CompressionStateBackup cannot restore what compression remembered at iteration %d of the model: %s. "
        "Compression starts anew. (A number of replicas other than before needs the parts of all, in a `backup_dir` "
        "that all workers share.)",
        iteration,
        reason,
    )


def _all_agree(strategy: tf.distribute.Strategy, iteration: int, num_members: int) -> bool:
    """Returns whether all workers have found parts, of one group; all of them must call it.

    Args:
        strategy: that the model trains under.
        iteration: of this worker's model.
        num_members: of the group whose parts it has found, or 0.

    Raises:
        ValueError: the workers' models are not at the same iteration.
    """
    if len(strategy.extended.worker_devices) == strategy.num_replicas_in_sync:
        return num_members > 0
    mine = strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant([[iteration, num_members]], tf.int64)
    )
    iterations, groups = strategy.gather(mine, axis=0).numpy().T.tolist()
    if len(set(iterations)) > 1:
        raise ValueError(
            "The workers begin at different iterations of the model: their backups are not of the same time. Restore "
            "the same backup on each of them, or remove all and start anew. Received: iterations "
            f"{iterations}, by replica."
        )
    return min(groups) > 0 and len(set(groups)) == 1


def _state(model: keras.Model) -> CompressionState | None:
    """Returns what compression remembers of the training of `model`, or None where there is nothing to remember."""
    state = getattr(model.distribute_strategy, "compression_state", None)
    specs = [tf.TensorSpec(one.shape, one.dtype, name=one.path) for one in model.trainable_variables]
    return state if state is not None and state.remembers(specs) else None
