"""One worker: its process with all that it starts, what it prints, and the log that keeps it."""

import contextlib
import fcntl
import os
import subprocess
import sys
import termios
from collections.abc import Mapping, Sequence
from pathlib import Path

READ_BYTES = 1 << 16
KEPT_BYTES = 1 << 16
GUARD = Path(__file__).with_name("guard.py")


class Worker:
    """A running worker, in a process group of its own.

    Args:
        rank: its place in the cluster.
        command: what it runs.
        environment: the whole environment of the process.
        log_path: a new file for its output.
        terminal: descriptor of a terminal to imitate, so that it draws its progress bar; None gives it a pipe.

    Raises:
        OSError: it could not be started.
    """

    def __init__(
        self,
        rank: int,
        command: Sequence[str],
        environment: Mapping[str, str],
        log_path: Path,
        *,
        terminal: int | None = None,
    ):
        self.rank = rank
        self.exit_code: int | None = None
        self.log_error: OSError | None = None
        self.output_end = b""
        self._group_is_empty = False
        self._terminal = terminal
        self._window_size = b""
        self._log = log_path.open("xb", buffering=0)
        self._output, output_of_worker = os.pipe() if terminal is None else os.openpty()
        try:
            os.set_blocking(self._output, False)
            if terminal is not None:
                _pass_bytes_unchanged(output_of_worker)
                self.follow_window_size()
            self._process = subprocess.Popen(
                _guarded(command),
                # As under mpirun, the chief alone may read what the launcher is given.
                stdin=None if rank == 0 and sys.stdin is not None else subprocess.DEVNULL,
                stdout=output_of_worker,
                stderr=output_of_worker,
                env=environment,
                start_new_session=True,
            )
        except BaseException:
            self.close()
            raise
        finally:
            os.close(output_of_worker)

    @property
    def output(self) -> int:
        """The descriptor to wait on for output, or -1 when no more can come."""
        return self._output

    def read(self) -> bytes:
        """Returns what the worker printed, after keeping it in the log; b"" if there is nothing now."""
        if self._output < 0:
            return b""
        try:
            data = os.read(self._output, READ_BYTES)
        except BlockingIOError:
            return b""
        except OSError:  # EIO: the last process that had the pseudo-terminal open is gone
            data = b""
        if not data:
            os.close(self._output)
            self._output = -1
            return b""
        self.output_end = (self.output_end + data)[-KEPT_BYTES:]
        self._keep(data)
        return data

    def poll(self) -> int | None:
        """Returns the exit code of the worker (see `subprocess`), or None while it runs."""
        if self.exit_code is None:
            self.exit_code = self._process.poll()
        return self.exit_code

    def group_lives(self) -> bool:
        """Tells whether the worker or any process that it left behind in its group still runs."""
        if self.poll() is None:
            return True
        # Once seen empty, the number of the group may pass to strangers.
        self._group_is_empty = self._group_is_empty or not _group_lives(self._process.pid)
        return not self._group_is_empty

    def signal_group(self, number: int) -> None:
        """Sends a signal to the worker and to what it started."""
        if self.group_lives():
            # PermissionError: macOS has it for a group of which only zombies are left.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)

    def follow_window_size(self) -> None:
        """Gives the worker's pseudo-terminal the size of the terminal that it imitates."""
        if self._terminal is None or self._output < 0:
            return
        with contextlib.suppress(OSError):
            size = fcntl.ioctl(self._terminal, termios.TIOCGWINSZ, bytes(8))
            if size != self._window_size:
                self._window_size = size
                fcntl.ioctl(self._output, termios.TIOCSWINSZ, size)

    def close(self) -> None:
        """Lets go of the output and the log."""
        if self._output >= 0:
            os.close(self._output)
            self._output = -1
        self._log.close()

    def _keep(self, data: bytes) -> None:
        try:
            view = memoryview(data)
            while view and self.log_error is None:
                view = view[self._log.write(view) :]
        except OSError as error:  # a full disk must not end a training
            self.log_error = error


def _guarded(command: Sequence[str]) -> list[str]:
    if not sys.platform.startswith("linux"):
        return list(command)
    return [sys.executable, "-I", "-S", str(GUARD), str(os.getpid()), *command]


def _pass_bytes_unchanged(terminal: int) -> None:
    """Has a pseudo-terminal leave line ends as they are: the real terminal sees to them, and logs want them plain."""
    attributes = termios.tcgetattr(terminal)
    attributes[1] &= ~termios.OPOST
    termios.tcsetattr(terminal, termios.TCSANOW, attributes)


def _group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    # Zombies count for the system. In a container whose first process does not reap them they stay for ever.
    stats = [] if not sys.platform.startswith("linux") else list(Path("/proc").glob("[0-9]*/stat"))
    return not stats or any(_runs_in_group(stat, group) for stat in stats)


def _runs_in_group(stat: Path, group: int) -> bool:
    try:
        # "PID (NAME) STATE PPID PGRP ..": the name may hold anything.
        state, _, its_group = stat.read_bytes().rpartition(b")")[2].split()[:3]
    except OSError:
        return False
    return int(its_group) == group and state not in (b"Z", b"X")
