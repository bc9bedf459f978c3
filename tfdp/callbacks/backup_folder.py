"""A folder of numbered backups of a model, each whole or not there."""

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from tfdp.callbacks.whole_files import flush, flush_folder, remove, remove_if_empty

_NAME = re.compile(r"backup-(?P<number>\d+)(?P<unfinished>\.unfinished)?")
_WEIGHTS, _TRAINING = "model.weights.h5", "training.json"
# Of keras.callbacks.BackupAndRestore: the last, and the one before.
_KERAS = (
    ("latest.weights.h5", "training_metadata.json"),
    ("latest.weights.h5.bkp", "training_metadata.json.bkp"),
)
_FORMAT = 1


class Backup(NamedTuple):
    """One backup.

    Attributes:
        number: of it, more than those before; None for one of `keras.callbacks.BackupAndRestore`.
        weights: the file of the model and its optimizer.
        training: what else was saved, of JSON.
    """

    number: int | None
    weights: Path
    training: dict[str, Any]


class BackupFolder:
    """The folders `<folder>/backup-<number>`, written under another name and renamed when they are whole."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, number: int, save_weights: Callable[[str], object], training: dict[str, Any]) -> None:
        """Writes a backup that is not there before it is committed."""
        self._discard_unfinished()
        unfinished = self._path(number, ".unfinished")
        unfinished.mkdir(parents=True)
        try:
            save_weights(str(unfinished / _WEIGHTS))
            (unfinished / _TRAINING).write_text(json.dumps({"format": _FORMAT, **training}))
            flush(unfinished / _WEIGHTS)
            flush(unfinished / _TRAINING)
            flush_folder(unfinished)
        except BaseException:
            _remove_folder(unfinished)
            raise

    def commit(self, number: int) -> None:
        """Lets the backup that was written be there."""
        os.rename(self._path(number, ".unfinished"), self._path(number))
        flush_folder(self._folder)

    def backups(self) -> list[Backup]:
        """Returns all that can be restored, the best first.

        Raises:
            ValueError: one is of a later version of tfdp.
        """
        numbers = sorted((number for number, is_whole in self._numbers() if is_whole), reverse=True)
        own = [Backup(number, self._path(number) / _WEIGHTS, self._training(number)) for number in numbers]
        if own:
            return own
        of_keras = [(self._folder / weights, self._folder / training) for weights, training in _KERAS]
        return [
            Backup(None, weights, {"epoch": json.loads(training.read_text())["epoch"]})
            for weights, training in of_keras
            if weights.exists() and training.exists()
        ]

    def keep(self, numbers: Iterable[int]) -> None:
        """Removes all other backups."""
        kept = set(numbers)
        for number, is_whole in self._numbers():
            if is_whole and number not in kept:
                # Under the other name first: what is left of it is no backup, should the process die.
                with contextlib.suppress(OSError):
                    os.rename(self._path(number), self._path(number, ".unfinished"))
        self._discard_unfinished()
        if not kept:
            remove_if_empty(self._folder)

    def remove_those_of_keras(self) -> None:
        """Removes what `keras.callbacks.BackupAndRestore` has written."""
        for name in (name for names in _KERAS for name in names):
            remove(self._folder / name)
        remove_if_empty(self._folder)

    def _path(self, number: int, suffix: str = "") -> Path:
        return self._folder / f"backup-{number}{suffix}"

    def _numbers(self) -> list[tuple[int, bool]]:
        """Returns the numbers of the folders, and whether each is whole."""
        with contextlib.suppress(FileNotFoundError):
            matches = [_NAME.fullmatch(path.name) for path in self._folder.iterdir()]
            return [(int(match["number"]), not match["unfinished"]) for match in matches if match]
        return []

    def _training(self, number: int) -> dict[str, Any]:
        training = json.loads((self._path(number) / _TRAINING).read_text())
        if training["format"] != _FORMAT:
            raise ValueError(
                f"{self._path(number)} is of format {training['format']}, this version of tfdp reads {_FORMAT}."
            )
        return training

    def _discard_unfinished(self) -> None:
        for number, is_whole in self._numbers():
            if not is_whole:
                _remove_folder(self._path(number, ".unfinished"))


def _remove_folder(folder: Path) -> None:
    """Removes a backup's folder, but not what others have put there."""
    for name in (_WEIGHTS, _TRAINING):
        remove(folder / name)
    remove_if_empty(folder)
