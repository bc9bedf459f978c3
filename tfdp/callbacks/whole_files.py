"""Files that are whole or not there, whenever the process that writes them dies."""

import contextlib
import glob
import os
from collections.abc import Iterator
from pathlib import Path

# What Keras tells formats by must stay the end of a name.
_SUFFIXES = (".weights.h5", ".weights.json", ".keras", ".h5")


@contextlib.contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Gives the path of a file beside `path` to write to, which takes its place at the end.

    Where writing fails, it is removed, and `path` stays as it is. So is what a process that was killed has left.
    """
    path = Path(os.path.realpath(path))  # a link stays one
    suffix = next((end for end in _SUFFIXES if path.name.endswith(end)), path.suffix)
    for left in path.parent.glob(f".{glob.escape(path.name)}.*.unfinished{suffix}"):
        remove(left)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.unfinished{suffix}")
    try:
        yield unfinished
        flush(unfinished)
        unfinished.replace(path)
    except BaseException:
        remove(unfinished)
        raise
    flush_folder(path.parent)


def flush(path: Path) -> None:
    """Waits until the content of a file is on the disk."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def flush_folder(folder: Path) -> None:
    """Makes a new name in the folder last, where the file system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def remove(path: Path) -> None:
    """Removes a file, if it is there and not in use."""
    with contextlib.suppress(OSError):  # gone already, or in use on a network file system: the next time, then
        path.unlink()


def remove_if_empty(folder: Path) -> None:
    """Removes a folder that has nothing in it."""
    with contextlib.suppress(OSError):
        folder.rmdir()
