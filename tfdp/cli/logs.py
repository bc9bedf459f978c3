"""The folder that keeps the output of the workers of one launch."""

import itertools
import os
import tempfile
import time
from pathlib import Path

from tfdp.cli.errors import LaunchError

DEFAULT_FOLDER = Path("tfdp-logs")


def make_log_dir(chosen: Path | None) -> Path:
    """Makes the folder of logs and returns its absolute path.

    Logs of an earlier launch in a chosen folder are moved to a folder inside it: none is overwritten, and
    "worker-0.log" is always that of the last launch.

    Args:
        chosen: the folder, or None for a fresh one in `tfdp-logs` of the current directory.

    Raises:
        LaunchError: nothing can be written there.
    """
    try:
        if chosen is None:
            return _fresh_folder(DEFAULT_FOLDER.absolute())
        folder = chosen.absolute()
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass  # a folder that exists need not be one that can be written
        _set_earlier_logs_aside(folder)
        return folder
    except OSError as error:
        folder = chosen or DEFAULT_FOLDER
        raise LaunchError(
            f"The folder of logs must be one that can be made and written. Received: {str(folder)!r} "
            f"({error.strerror}). Choose another with `--log-dir`."
        ) from error


def log_file(log_dir: Path, rank: int) -> Path:
    """Returns the file that keeps the output of one worker."""
    return log_dir / f"worker-{rank}.log"


def _set_earlier_logs_aside(folder: Path) -> None:
    earlier = sorted(folder.glob("worker-*.log"))
    if earlier:
        aside = _fresh_folder(folder / "earlier")
        for path in earlier:
            path.rename(aside / path.name)


def _fresh_folder(parent: Path) -> Path:
    stamp = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    for number in itertools.count(1):  # one process may launch twice within a second
        folder = parent / (stamp if number == 1 else f"{stamp}-{number}")
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            if not folder.is_dir():
                raise
    raise AssertionError("unreachable")
