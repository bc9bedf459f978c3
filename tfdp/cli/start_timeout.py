"""Which workers did not come while others wait for them."""

import time
from collections.abc import Collection
from pathlib import Path

from tfdp.cli.cluster import ready_file

CHECK_SECONDS = 0.25


def late_ranks(num_workers: int, *, waiting: Collection[int], ready: Collection[int]) -> tuple[int, ...]:
    """Returns the workers that others wait for and that have not begun to connect.

    Args:
        num_workers: the size of the cluster.
        waiting: the workers whose strategy began to connect.
        ready: those whose strategy is connected.
    """
    if set(waiting) <= set(ready):
        return ()
    return tuple(rank for rank in range(num_workers) if rank not in waiting and rank not in ready)


class StartWatch:
    """Watches the files by which the strategies of the workers report.

    A program that makes no tfdp strategy never reports, and none of its workers is ever late.

    Args:
        log_dir: where the files appear.
        num_workers: the size of the cluster.
        timeout_seconds: how long the others may take after the first began to wait.
    """

    def __init__(self, log_dir: Path, num_workers: int, timeout_seconds: float):
        self._ready = {rank: ready_file(log_dir, rank) for rank in range(num_workers)}
        self._waiting = {rank: path.with_name(path.name + ".waiting") for rank, path in self._ready.items()}
        self._timeout_seconds = timeout_seconds
        self._next_check = 0.0
        self._first_seen: float | None = None
        self._all_came = False
        self.clear()

    def clear(self) -> None:
        """Removes the files, which mean nothing once their launch is over."""
        for path in (*self._ready.values(), *self._waiting.values()):
            path.unlink(missing_ok=True)

    def late(self) -> tuple[int, ...]:
        """Returns the workers that did not come in time."""
        now = time.monotonic()
        if self._all_came or now < self._next_check:
            return ()
        self._next_check = now + CHECK_SECONDS
        waiting = {rank for rank, path in self._waiting.items() if path.exists()}
        ready = {rank for rank, path in self._ready.items() if path.exists()}
        self._all_came = len(waiting | ready) == len(self._ready)
        if self._first_seen is None and waiting:
            self._first_seen = now
        if self._first_seen is None or now - self._first_seen < self._timeout_seconds:
            return ()
        return late_ranks(len(self._ready), waiting=waiting, ready=ready)
