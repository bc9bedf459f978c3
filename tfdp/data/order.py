"""Which examples come when: pure arithmetic of seeds, epochs, steps and workers."""

from typing import NamedTuple

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


def epoch_seed(seed: int, epoch: int) -> int:
    """Returns the seed of an epoch's order, in [0, 2**62)."""
    return int(np.random.SeedSequence([seed, epoch]).generate_state(1, np.uint64)[0] >> np.uint64(2))


def permutation(num_examples: int, seed: int, epoch: int) -> np.ndarray:
    """Returns the order of an epoch: int64 [num_examples], each position once."""
    return np.random.default_rng(epoch_seed(seed, epoch)).permutation(num_examples)


def bounds(layout: Layout, global_batch_size: int) -> tuple[int, int]:
    """Returns which rows of each global batch are a worker's: from the first to before the second."""
    first, end = ((layout.worker + offset) * global_batch_size // layout.num_workers for offset in (0, 1))
    return first, end


def own_rows(rows: np.ndarray, layout: Layout, global_batch_size: int) -> np.ndarray:
    """Returns those of an epoch's rows, from the begin of a step on, that a worker takes.

    A worker takes the same number of each global batch but the last, of which the first ones take one more.
    """
    if global_batch_size % layout.num_workers == 0:
        return rows[layout.worker :: layout.num_workers]
    first, end = bounds(layout, global_batch_size)
    within = np.arange(len(rows)) % global_batch_size
    return rows[(within >= first) & (within < end)]


def num_steps(num_examples: int, global_batch_size: int, uneven: str) -> int:
    """Returns the steps of an epoch over so many examples."""
    whole, rest = divmod(num_examples, global_batch_size)
    return whole + (rest > 0 and uneven != "drop")
