"""Which examples come when: pure arithmetic of seeds, epochs, steps and workers."""

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from tfdp.data.layout import Layout


class Leg(NamedTuple):
    """Steps of an epoch that were made by one set of workers.

    Attributes:
        num_workers: that made them.
        global_batch_size: examples of a step.
        num_steps: that were made.
    """

    num_workers: int
    global_batch_size: int
    num_steps: int

    @property
    def num_examples(self) -> int:
        """That all workers have taken, if the data did not end."""
        return self.global_batch_size * self.num_steps


def epoch_seed(seed: int, epoch: int, *more: int) -> int:
    """Returns the seed of an epoch's order, in [0, 2**62); another one for other numbers `more`."""
    return int(np.random.SeedSequence([seed, epoch, *more]).generate_state(1, np.uint64)[0] >> np.uint64(2))


def permutation(num_examples: int, seed: int, epoch: int) -> np.ndarray:
    """Returns the order of an epoch: int64 [num_examples], each position once."""
    return np.random.default_rng(epoch_seed(seed, epoch)).permutation(num_examples)


def own_size(layout: Layout, global_batch_size: int) -> int:
    """Returns how many examples of each full global batch a worker takes; the first workers take one more."""
    return sum(end - begin for begin, end in pieces(layout, global_batch_size, global_batch_size))


def blocks(layout: Layout, global_batch_size: int) -> list[tuple[int, int]]:
    """Returns which rows of a global batch the first replicas of all workers take, then the second ones, and so on."""
    num_local = layout.num_local_replicas
    edges = [replica * global_batch_size // num_local for replica in range(num_local + 1)]
    return list(itertools.pairwise(edges))


def piece(layout: Layout, begin: Any, end: Any, least: Callable[[Any, Any], Any] = min) -> tuple[Any, Any]:
    """Returns which rows of those from `begin` to before `end`, one for each of its replicas, a worker takes.

    Workers take rows that follow each other, as many as if they were dealt one by one: over all blocks about the same.
    """
    num_workers = layout.num_workers

    def dealt(num_rows: Any, num_first: int) -> Any:
        """Returns how many of the first rows the first workers get."""
        return num_rows // num_workers * num_first + least(num_rows % num_workers, num_first)

    first, last = (begin + dealt(end, some) - dealt(begin, some) for some in (layout.worker, layout.worker + 1))
    return first, last


def pieces(layout: Layout, global_batch_size: int, num_rows: int) -> list[tuple[int, int]]:
    """Returns which rows of a batch of `num_rows` each replica of a worker takes: from the first to before the second.

    Replicas take rows that follow each other: the first replicas of all workers, then the second ones. So Keras joins
    what they predict. In a batch that is not full the later ones get less, and the workers about the same.
    """
    clipped = [tuple(min(edge, num_rows) for edge in block) for block in blocks(layout, global_batch_size)]
    return [piece(layout, begin, end) for begin, end in clipped]


def own_rows(rows: np.ndarray, layout: Layout, global_batch_size: int) -> np.ndarray:
    """Returns those of an epoch's rows, from the begin of a step on, that a worker takes."""
    whole = len(rows) // global_batch_size * global_batch_size

    def own(num_rows: int) -> np.ndarray:
        ranges = [np.arange(begin, end) for begin, end in pieces(layout, global_batch_size, num_rows)]
        return np.concatenate(ranges)

    full = rows[:whole].reshape(-1, global_batch_size)[:, own(global_batch_size)]
    return np.concatenate([full.reshape(-1), rows[whole:][own(len(rows) - whole)]])


def num_steps(num_examples: int, global_batch_size: int, uneven: str) -> int:
    """Returns the steps of an epoch over so many examples."""
    whole, rest = divmod(num_examples, global_batch_size)
    return whole + (rest > 0 and uneven != "drop")
