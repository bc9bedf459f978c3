"""A folder with the saved compression state of each replica in a file of its own, by iteration."""

import contextlib
import os
import re
from collections.abc import Callable, Sequence, Set
from pathlib import Path
from typing import BinaryIO, NamedTuple

from tfdp.callbacks.whole_files import flush_folder, remove, remove_if_empty
from tfdp.compression_state import Part, deserialized, serialized

_NAME = re.compile(r"part-(?P<rank>\d+)-of-(?P<num_members>\d+)\.npz(?P<unfinished>\.unfinished)?")
_MOST_TRIES = 100


class _File(NamedTuple):
    path: Path
    rank: int
    num_members: int
    is_whole: bool


class PartFiles:
    """The files `<folder>/<iteration>/part-<rank>-of-<num_members>.npz`, as one of several workers sees them.

    A worker writes and removes what belongs to its own replicas. Files of a group of another size belong to the replica
    whose rank is theirs modulo the number of replicas, so that each belongs to exactly one.
    """

    def __init__(self, folder: Path, ranks: Sequence[int], num_members: int) -> None:
        self._folder, self._ranks, self._num_members = folder, ranks, num_members

    def write(self, iteration: int, parts: Sequence[Part]) -> None:
        """Writes this worker's parts; whoever dies meanwhile leaves whole files only."""
        written = {self._write(iteration, part) for part in parts}
        for file in _files_of(self._folder / str(iteration)):
            if self._is_own(file) and file.path not in written:
                remove(file.path)

    def read(self, iteration: int, fits: Callable[[Sequence[Part]], bool] = lambda parts: True) -> list[Part]:
        """Returns this worker's parts, or those of all members of a group of another size, or of another layout.

        Args:
            iteration: of the save.
            fits: parts of this worker -> whether they are all that it needs, where others can be had too.

        Raises:
            LookupError: there are not all of them, or one cannot be read; says which.
        """
        folder = self._folder / str(iteration)
        by_group: dict[int, dict[int, Path]] = {}
        for file in _files_of(folder):
            if file.is_whole:
                by_group.setdefault(file.num_members, {})[file.rank] = file.path
        if not by_group:
            raise LookupError(f"there is none in {folder}")
        own = by_group.pop(self._num_members, {})
        if own.keys() >= set(self._ranks):
            parts = [_read(own[rank]) for rank in self._ranks]
            has_all = len(own) == self._num_members
            return [_read(own[rank]) for rank in sorted(own)] if has_all and not fits(parts) else parts
        for num_members, paths in by_group.items():
            if len(paths) == num_members:
                return [_read(paths[rank]) for rank in sorted(paths)]
        if own or not by_group:
            missing, num_members = sorted(set(self._ranks) - own.keys()), self._num_members
        else:
            num_members = max(by_group, key=lambda size: len(by_group[size]))
            missing = sorted(set(range(num_members)) - by_group[num_members].keys())
        raise LookupError(f"in {folder} there are no parts of replicas {missing} of {num_members}")

    def has_any(self) -> bool:
        """Returns whether there are files of any iteration and worker."""
        return any(_files_of(folder) for folder in self._folders())

    def keep(self, iterations: Set[int]) -> None:
        """Removes this worker's files of all other iterations, and the folders that are empty then."""
        for folder in self._folders():
            if int(folder.name) not in iterations:
                for file in _files_of(folder):
                    if self._is_own(file):
                        remove(file.path)
                remove_if_empty(folder)
        if not iterations:
            remove_if_empty(self._folder)

    def _write(self, iteration: int, part: Part) -> Path:
        path = self._folder / str(iteration) / f"part-{part.rank}-of-{part.num_members}.npz"
        unfinished = path.with_name(f"{path.name}.unfinished")
        with _create(unfinished) as file:
            file.write(serialized([part]))
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
        flush_folder(path.parent)
        return path

    def _is_own(self, file: _File) -> bool:
        return file.rank % self._num_members in self._ranks

    def _folders(self) -> list[Path]:
        with contextlib.suppress(FileNotFoundError):
            return [path for path in self._folder.iterdir() if path.name.isdecimal() and path.is_dir()]
        return []


def _files_of(folder: Path) -> list[_File]:
    try:
        paths = sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    matches = [(path, _NAME.fullmatch(path.name)) for path in paths]
    return [
        _File(path, int(match["rank"]), int(match["num_members"]), not match["unfinished"])
        for path, match in matches
        if match
    ]


def _read(path: Path) -> Part:
    try:
        (part,) = deserialized(path.read_bytes())
    except (OSError, ValueError) as error:
        raise LookupError(f"{path} cannot be read: {error}") from error
    return part


def _create(path: Path) -> BinaryIO:
    """Opens a new file in a folder that another worker may remove as long as it is empty."""
    for _ in range(_MOST_TRIES):
        with contextlib.suppress(FileNotFoundError, FileExistsError):
            path.parent.mkdir(parents=True, exist_ok=True)
            return path.open("wb")
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("wb")
