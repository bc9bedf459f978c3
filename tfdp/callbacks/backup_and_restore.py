"""The callback that saves a training as a whole, and lets it go on where it was interrupted."""

import contextlib
import json
import logging
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np

from tfdp import keras_seam
from tfdp.callbacks.backup_folder import Backup, BackupFolder
from tfdp.callbacks.compression_parts import CompressionParts
from tfdp.callbacks.one_writer import reading_alone
from tfdp.callbacks.saving import SaveFrequency, checked_delete_checkpoint, checked_folder, checked_save_freq
from tfdp.callbacks.together import failing_together, num_workers_of, receive_file, told_by, worker_of
from tfdp.callbacks.whole_files import remove_if_empty
from tfdp.data.sharding import ShardedDataset

_LOG = logging.getLogger("tfdp")


class BackupAndRestore(keras.callbacks.BackupAndRestore):
    """Saves all of a training, and goes on with it as if it had not been interrupted.

    It takes the place of `keras.callbacks.BackupAndRestore`. A backup holds the model and its optimizer, the epoch, the
    seeds of dropout, what compression remembers, and where sharded data stand: with `tfdp.data.shard` and an integer
    `save_freq` a training goes on in the middle of an epoch, bit for bit on as many workers. Without sharded data it
    goes on with the begin of the epoch, as Keras's does.

    Give it to all workers, with one folder: a shared one, or the same name on each machine. The chief writes the backup
    and gives it to all others, who need not see it. Each worker writes what compression remembers on its own replicas,
    and reads it again; another number of workers needs a shared folder for that, or compression starts anew, with a
    warning.

    A backup is whole or not there, and the one before is removed only when it is. Where one worker fails in saving or
    restoring, all raise. A backup that cannot be read for an error of the file system gives way to the one before, if
    `double_checkpoint` has kept it. Backups of Keras's callback are restored too.

    Example:
        >>> data = tfdp.data.shard("train/*.tfrecord", global_batch_size=256)
        >>> model.fit(data, epochs=10, callbacks=[BackupAndRestore("/tmp/run/backup", save_freq=100)])
    """

    # State has its defaults in the class: a callback of Keras may become one of these.
    tfdp_writer, tfdp_is_everywhere = 0, True
    _data: ShardedDataset | None = None
    _frequency: SaveFrequency | None = None
    _kept: tuple[int, ...] = ()
    _last_number = 0
    _epoch = 0
    _restored_of_keras = False

    def __init__(
        self,
        backup_dir: str | os.PathLike[str],
        save_freq: str | int = "epoch",
        double_checkpoint: bool = False,
        delete_checkpoint: bool = True,
        *,
        data: ShardedDataset | None = None,
    ) -> None:
        """Saves into `backup_dir`.

        Args:
            backup_dir: a folder of a file system for this training alone, made when needed.
            save_freq: "epoch" to save at the end of each epoch, or after how many batches to save.
            double_checkpoint: whether the last two backups are kept.
            delete_checkpoint: whether the backups are removed when the training has come to its end.
            data: what `fit` trains on; None for what it is given, if that is of `tfdp.data.shard`.

        Raises:
            TypeError: an argument is of the wrong type.
            ValueError: an argument is out of range.
        """
        if not isinstance(double_checkpoint, bool):
            raise TypeError(f"`double_checkpoint` must be True or False. Received: {double_checkpoint!r}.")
        if data is not None and not isinstance(data, ShardedDataset):
            raise TypeError(f"`data` must be what `tfdp.data.shard` returns. Received: {data!r}.")
        super().__init__(
            str(checked_folder(backup_dir)),
            checked_save_freq(save_freq),
            double_checkpoint,
            checked_delete_checkpoint(delete_checkpoint),
        )
        self._data = data

    def on_train_begin(self, logs: Any = None) -> None:
        self._frequency = SaveFrequency(self.save_freq)
        self._kept, self._restored_of_keras = (), False
        self._restore()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch
        keras_seam.begin_at(self.model, None)  # `fit` has read it, and would begin there the next time too

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        assert self._frequency is not None
        if self._frequency.is_due_after_batch(batch):
            self._save(self._epoch, is_epoch_over=False)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        assert self._frequency is not None
        if self._frequency.is_due_after_epoch():
            self._save(epoch + 1, is_epoch_over=True)

    def on_train_end(self, logs: Any = None) -> None:
        keras_seam.begin_at(self.model, None)
        if not self.delete_checkpoint:
            return
        if (parts := self._parts()) is not None:
            parts.keep([])
        if self._is_chief():
            if self._restored_of_keras:
                self._backups().remove_those_of_keras()
            self._backups().keep([])
        remove_if_empty(self._folder())

    def _save(self, epoch: int, is_epoch_over: bool) -> None:
        strategy, backups, parts, data = self.model.distribute_strategy, self._backups(), self._parts(), self._sharded()
        number = self._last_number + 1
        training = {
            "epoch": epoch,
            "is_epoch_over": is_epoch_over,
            "has_parts": parts is not None,
            "seeds": _values(_seeds(self.model)),
            "global_seeds": _values(_global_seeds(strategy)),
            "position": None if data is None else _position(data, is_epoch_over),
        }
        with failing_together(strategy, "Writing a backup"):
            if parts is not None:
                parts.write(number)
            if self._is_chief():
                with reading_alone(strategy):
                    backups.write(number, self.model.save_weights, training)
        with failing_together(strategy, "Writing a backup"):
            if self._is_chief():
                backups.commit(number)
        self._last_number = number
        self._kept = (*self._kept, number)[-2 if self.double_checkpoint else -1 :]
        if parts is not None:
            parts.keep(self._kept)
        if self._is_chief():
            backups.keep(self._kept)

    def _restore(self) -> None:
        model = self.model
        strategy = model.distribute_strategy
        if not model.built:
            raise ValueError(
                "A model must be built before tfdp.callbacks.BackupAndRestore can restore it. Give its first layer an "
                f"Input, or call it on a batch of data before `fit`. Received: {model.name}, which is not built."
            )
        if model.optimizer is not None and not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        with failing_together(strategy, "Restoring a backup"):
            backup, told = self._load() if self._is_chief() else (None, {})
        told = told_by(strategy, 0, "the backup to restore", told)
        self._last_number = told["last_number"]
        training = told["training"]
        if training is None:
            return
        if num_workers_of(strategy) > 1:
            self._load_from_chief(backup, told["num_bytes"])
        if told["number"] is not None:
            self._kept = (told["number"],)
        _restore_seeds(_seeds(model), training.get("seeds", []))
        _restore_seeds(_global_seeds(strategy), training.get("global_seeds", []))
        self._restore_compression(told["number"], training)
        epoch = training["epoch"]
        if self._restore_position(training):
            epoch += 1
        keras_seam.begin_at(model, epoch)
        self._epoch = epoch

    def _load(self) -> tuple[Backup | None, dict[str, Any]]:
        """Loads the best backup that can be read; returns it and what all workers must know, on the chief."""
        backups = self._backups().backups()
        numbers = [backup.number or 0 for backup in backups]
        # Numbers tell the parts of one training from those of another that a worker may still have.
        told: dict[str, Any] = {"last_number": max([time.time_ns() // 1_000_000, *numbers]), "training": None}
        for backup in backups:
            try:
                self._load_weights(backup.weights)
            except OSError as error:
                if backup is backups[-1]:
                    raise
                _LOG.warning(
                    "tfdp: BackupAndRestore cannot read %s, and takes the backup before: %s", backup.weights, error
                )
                continue
            self._restored_of_keras = backup.number is None
            told.update(training=backup.training, number=backup.number, num_bytes=backup.weights.stat().st_size)
            return backup, told
        return None, told

    def _load_from_chief(self, backup: Backup | None, num_bytes: int) -> None:
        strategy = self.model.distribute_strategy
        with contextlib.ExitStack() as stack:
            with failing_together(strategy, "Restoring a backup"):
                own = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "model.weights.h5"
            with failing_together(strategy, "Restoring a backup"):
                receive_file(strategy, backup.weights if backup else None, num_bytes, own)
                if not self._is_chief():
                    self._load_weights(own)

    def _load_weights(self, path: Path) -> None:
        if path.name.endswith(".weights.h5"):
            self.model.load_weights(path)
            return
        with tempfile.TemporaryDirectory() as folder:  # Keras goes by the end of the name
            link = Path(folder) / "model.weights.h5"
            link.symlink_to(path.resolve())
            self.model.load_weights(link)

    def _restore_compression(self, number: int | None, training: dict[str, Any]) -> None:
        parts = self._parts()
        if parts is None:
            return
        reason = parts.restore(number) if training.get("has_parts") else ""
        if reason is None:
            return
        if reason:
            _LOG.warning(
                "tfdp: BackupAndRestore cannot restore what compression remembered: %s. Compression starts anew. "
                "(A number of replicas other than before needs the parts of all, in a `backup_dir` that all workers "
                "share.)",
                reason,
            )
        parts.start_anew()

    def _restore_position(self, training: dict[str, Any]) -> bool:
        """Restores where sharded data stand; returns whether they have come to the end of the backup's epoch."""
        data, position = self._sharded(), training.get("position")
        if data is None or position is None:
            if position is not None:
                _LOG.warning(
                    "tfdp: BackupAndRestore has the position of sharded data, and `fit` trains on others: they begin "
                    "with a whole epoch."
                )
            return False
        data.position.deserialize(json.dumps(position))
        return data.epoch > position["epoch"] and not training["is_epoch_over"]

    def _backups(self) -> BackupFolder:
        return BackupFolder(self._folder())

    def _parts(self) -> CompressionParts | None:
        return CompressionParts.of(self.model, self._folder() / "compression")

    def _folder(self) -> Path:
        return checked_folder(self.backup_dir)

    def _sharded(self) -> ShardedDataset | None:
        data = self._data if self._data is not None else getattr(self.model, "_tfdp_training_data", None)
        return data if isinstance(data, ShardedDataset) else None

    def _is_chief(self) -> bool:
        return worker_of(self.model.distribute_strategy) == 0


def _position(data: ShardedDataset, is_epoch_over: bool) -> Any:
    position = data.position
    return json.loads(position.serialize_after_epoch() if is_epoch_over else position.serialize())


def _seeds(model: keras.Model) -> list[Any]:
    """Returns the states of a model's random numbers (dropout), which Keras does not save."""
    saved = {id(weight) for weight in model.weights}
    others = [variable for variable in model.variables if id(variable) not in saved]
    return [variable for variable in others if variable.name == "seed_generator_state"]


def _global_seeds(strategy: Any) -> list[Any]:
    """Returns the state of the random numbers that are drawn without a seed of their own."""
    generator = getattr(strategy, "global_seeds", None)
    return [] if generator is None else [generator.state]


def _values(seeds: list[Any]) -> list[list[int]]:
    return [np.asarray(keras.ops.convert_to_numpy(seed)).tolist() for seed in seeds]


def _restore_seeds(seeds: list[Any], values: list[list[int]]) -> None:
    """Restores seeds, where there are as many as were saved."""
    if len(seeds) == len(values):
        for seed, value in zip(seeds, values, strict=True):
            seed.assign(np.asarray(value, seed.dtype))
