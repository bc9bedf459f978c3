"""Writing to a screen that may be slow, stopped or gone, without ever waiting for it."""

import codecs
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TextIO

FULL_BYTES = 1 << 20
WRITE_BYTES = 1 << 16


class Screen:
    """A stream that is written to by a thread of its own.

    The launcher must answer to signals and end workers also while its terminal stands still (`| less`).

    Args:
        stream: such as `sys.stdout`; None, as Python has it where it was closed, takes everything silently.
    """

    def __init__(self, stream: TextIO | None):
        self._write_some = _writer(stream)
        self._changed = threading.Condition()
        self._pieces: deque[bytes] = deque()
        self._num_waiting_bytes = 0
        self._last_byte = b"\n"
        self.error: OSError | None = None
        threading.Thread(target=self._work, daemon=True).start()

    @property
    def full(self) -> bool:
        """Whether so much waits to be written that its producers had better be held up."""
        return self._num_waiting_bytes >= FULL_BYTES

    @property
    def in_line(self) -> bool:
        """Whether the last line given to the screen has no end yet."""
        return self._last_byte != b"\n"

    def write(self, data: bytes) -> None:
        """Takes `data` and returns at once. Once the stream has failed (see `error`), nothing is kept."""
        if not data or self.error:
            return
        with self._changed:
            self._pieces.append(data)
            self._num_waiting_bytes += len(data)
            self._last_byte = data[-1:]
            self._changed.notify_all()

    def drain(self, *, give_up: Callable[[], bool]) -> None:
        """Waits until all is written, or `give_up` returns True."""
        while self._num_waiting_bytes and not self.error and not give_up():
            with self._changed:
                self._changed.wait_for(lambda: not self._num_waiting_bytes or bool(self.error), timeout=0.05)

    def close(self) -> None:
        """Lets the thread end when it has written all."""
        with self._changed:
            self._pieces.append(b"")
            self._changed.notify_all()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._pieces)
                piece = self._pieces.popleft()
            if not piece:
                return
            for start in range(0, len(piece), WRITE_BYTES):
                part = piece[start : start + WRITE_BYTES]
                try:
                    self._write_some(part)
                except (OSError, ValueError) as error:  # ValueError: the stream was closed
                    self.error = error if isinstance(error, OSError) else OSError(str(error))
                with self._changed:
                    self._num_waiting_bytes -= len(part)
                    self._changed.notify_all()


def give_up_after(seconds: float) -> Callable[[], bool]:
    """Returns a condition for `Screen.drain` that holds from `seconds` on."""
    deadline = time.monotonic() + seconds
    return lambda: time.monotonic() > deadline


def _writer(stream: TextIO | None) -> Callable[[bytes], None]:
    if stream is None:
        return lambda data: None
    try:
        descriptor = stream.fileno()
        stream.flush()
    except (OSError, ValueError, AttributeError):  # what replaces `sys.stdout` in notebooks and tests
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        return lambda data: print(decoder.decode(data), end="", file=stream, flush=True)
    return lambda data: _write_to_descriptor(descriptor, data)


def _write_to_descriptor(descriptor: int, data: bytes) -> None:
    while data:
        try:
            data = data[os.write(descriptor, data) :]
        except BlockingIOError:  # another program with the same terminal made it non-blocking
            select.select([], [descriptor], [], 1.0)
