"""Who shares a data set: the workers, and the replicas of each."""

from collections.abc import Sequence
from typing import Any, NamedTuple


class Layout(NamedTuple):
    """The workers that share a data set, and which of them this is.

    Attributes:
        num_workers: processes that read data.
        worker: this one, from 0.
        num_local_replicas: replicas of each.
    """

    num_workers: int = 1
    worker: int = 0
    num_local_replicas: int = 1

    @property
    def num_replicas(self) -> int:
        """Of all workers."""
        return self.num_workers * self.num_local_replicas


def layout_of(strategy: Any) -> Layout:
    """Returns the layout of a strategy of tfdp, or of one that stays in its process.

    Raises:
        ValueError: the strategy has several workers and is not of tfdp.
    """
    num_local = len(strategy.extended.worker_devices)
    num_workers = strategy.num_replicas_in_sync // num_local
    if num_workers == 1:
        return Layout(1, 0, num_local)
    if not hasattr(strategy, "everyones"):
        raise ValueError(
            "`strategy` must be tfdp.MultiWorkerMirroredStrategy where there are several workers. Received: "
            f"{type(strategy).__name__}."
        )
    return Layout(num_workers, strategy.extended.first_replica // num_local, num_local)


def assigned(sizes: Sequence[int], num_workers: int) -> list[list[int]]:
    """Returns which parts each worker takes so that all have about as much: the largest first, each to who has least.

    Args:
        sizes: of the parts, in bytes or examples.
        num_workers: who share them.

    Returns:
        The positions of its parts, ascending, for each worker.
    """
    loads = [0] * num_workers
    parts: list[list[int]] = [[] for _ in range(num_workers)]
    for part in sorted(range(len(sizes)), key=lambda index: (-sizes[index], index)):
        worker = min(range(num_workers), key=lambda index: (loads[index], len(parts[index]), index))
        loads[worker] += sizes[part]
        parts[worker].append(part)
    return [sorted(own) for own in parts]
