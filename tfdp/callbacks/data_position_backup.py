"""The callback that saves where sharded data stands beside Keras's backup of the model."""

import contextlib
import json
import logging
import os
import re
from pathlib import Path
from typing import Any

from tfdp.callbacks.saving import SavingCallback, iteration_of
from tfdp.callbacks.whole_files import remove, remove_if_empty
from tfdp.data.sharding import ShardedDataset

_LOG = logging.getLogger("tfdp")
_NAME = re.compile(r"position-(\d+)\.json")
_NUM_KEPT = 2


class DataPositionBackup(SavingCallback):
    """Saves where sharded data stands beside `keras.callbacks.BackupAndRestore`.

    A training that was interrupted and is started again goes on with the examples of the epoch that it has not seen:
    its first epoch is as short as that. The number of workers may be another one.

    Give both callbacks the same `save_freq`, and put this one first: its last two files are kept, so that the one of
    the model's backup is there even where a process dies between the two. The files of all workers are the same; they
    may share a folder, and where only some have one, the others are told. Keras takes an epoch that was interrupted
    right after its last batch for unfinished: it is trained once more then, with the examples of the next one.

    Example:
        >>> data = tfdp.data.shard("train/*.tfrecord", global_batch_size=256)
        >>> callbacks = [
        ...     DataPositionBackup(data, "/tmp/run/data", save_freq=100),
        ...     keras.callbacks.BackupAndRestore("/tmp/run/worker-0", save_freq=100),
        ... ]
    """

    def __init__(
        self,
        data: ShardedDataset,
        backup_dir: str | os.PathLike[str],
        *,
        save_freq: str | int = "epoch",
        delete_checkpoint: bool = True,
    ) -> None:
        """Saves into `backup_dir`.

        Args:
            data: what `fit` trains on.
            backup_dir: a folder of a file system for this training alone, made when needed.
            save_freq: "epoch" to save at the end of each epoch, or after how many batches to save.
            delete_checkpoint: whether the files are removed when the training has come to its end.

        Raises:
            TypeError: an argument is of the wrong type.
            ValueError: an argument is out of range.
        """
        if not isinstance(data, ShardedDataset):
            raise TypeError(f"`data` must be what `tfdp.data.shard` returns. Received: {data!r}.")
        super().__init__(backup_dir, save_freq, delete_checkpoint)
        self._data = data

    def save(self, *, is_epoch_over: bool) -> None:
        position = self._data.position
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"position-{iteration_of(self.model)}.json"
        unfinished = path.with_name(f"{path.name}.{os.getpid()}.{self._data.worker}.unfinished")
        with unfinished.open("w") as file:
            file.write(position.serialize_after_epoch() if is_epoch_over else position.serialize())
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
        self._keep(_NUM_KEPT)

    def restore(self) -> None:
        iteration = iteration_of(self.model)
        if not self._data.told_by_any("whether to restore a position", iteration or None):
            return
        state = self._data.told_by_any("the position of sharded data", self._read(iteration))
        if state is not None:
            self._data.position.deserialize(json.dumps(state))
        elif any(self._files()):
            _LOG.warning(
                "tfdp: DataPositionBackup has no position for iteration %d of the model in %s: the data begins with a "
                "whole epoch.",
                iteration,
                self._folder,
            )

    def delete(self) -> None:
        self._keep(0)
        remove_if_empty(self._folder)

    def _read(self, iteration: int) -> Any:
        try:
            return json.loads((self._folder / f"position-{iteration}.json").read_text())
        except (OSError, ValueError):
            return None

    def _keep(self, count: int) -> None:
        """Removes all files but the `count` of the last iterations."""
        for path in sorted(self._files(), key=lambda path: -_iteration_in(path))[count:]:
            remove(path)

    def _files(self) -> list[Path]:
        with contextlib.suppress(OSError):
            return [path for path in self._folder.iterdir() if _NAME.fullmatch(path.name)]
        return []


def _iteration_in(path: Path) -> int:
    match = _NAME.fullmatch(path.name)
    return int(match[1]) if match else -1
