"""Becomes the command of a worker, after asking Linux to kill it should its launcher die.

Runs as a script, `python -I -S guard.py LAUNCHER_PID COMMAND..`, because code between fork and exec is unsafe in a
launcher with threads. It therefore imports nothing of tfdp.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def die_with(launcher_pid: int) -> None:
    """Has the kernel kill this process, also after exec, when its parent dies; kills it now where that is over."""
    try:
        prctl = ctypes.CDLL(None).prctl
    except (OSError, AttributeError):
        return
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != launcher_pid:  # it died before the request was made
        os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Turns this process into the command of its arguments."""
    launcher_pid, command = int(sys.argv[1]), sys.argv[2:]
    die_with(launcher_pid)
    # Python ignores these two, and exec would pass that on.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(
            f"tfdp run: cannot execute {command[0]!r}: {error.strerror}. A script must begin with a line that names an "
            "interpreter of this machine, such as #!/bin/sh.",
            file=sys.stderr,
        )
        sys.exit(127 if isinstance(error, FileNotFoundError) else 126)


if __name__ == "__main__":
    main()
