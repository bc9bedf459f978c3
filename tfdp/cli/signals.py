"""Signals to the launcher, kept for its loop to act on."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def caught_signals() -> Iterator[list[int]]:
    """Gives a list that grows by each SIGINT, SIGTERM and SIGHUP while the context lasts.

    A signal that is ignored stays so (`nohup`). Python delivers signals to its main thread only: in another one
    nothing is caught.
    """
    caught: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield caught
        return
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    before = {number: handler for number, handler in before.items() if handler not in (signal.SIG_IGN, None)}
    for number in before:
        signal.signal(number, lambda number, frame: caught.append(number))
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
