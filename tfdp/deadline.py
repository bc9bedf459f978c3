"""A deadline for calls that hold Python's lock while they wait, so that no thread of this process could end them."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

# Runs in a process of its own: waits for its input to end, which it also does when the watched process dies.
_WATCH = """
import os, select, signal, sys
process, seconds, message = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
if not select.select([sys.stdin], [], [], seconds)[0]:
    os.write(2, (message + "\\n").encode())
    os.kill(process, signal.SIGKILL)
"""


@contextlib.contextmanager
def kill_after(seconds: float, message: str) -> Iterator[None]:
    """Kills this process, with `message` on its standard error, unless the body ends within `seconds`."""
    watch = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _WATCH, str(os.getpid()), str(seconds), message],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        watch.stdin.close()  # type: ignore[union-attr]
        watch.wait()
