"""What compression remembers of the training of a model, in a folder of saves that all workers write and agree on."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from tfdp.callbacks.part_files import PartFiles
from tfdp.compression_state import CompressionState, Part


class CompressionParts:
    """The saved parts of this worker's replicas, by the number of the save."""

    def __init__(self, strategy: Any, state: CompressionState, folder: Path) -> None:
        self._strategy, self._state = strategy, state
        self._files = PartFiles(folder, state.ranks, state.num_members)

    @classmethod
    def of(cls, model: keras.Model, folder: Path) -> "CompressionParts | None":
        """Returns those of the training of `model`, or None where there is nothing to remember."""
        strategy = model.distribute_strategy
        state = getattr(strategy, "compression_state", None)
        specs = [tf.TensorSpec(one.shape, one.dtype, name=one.path) for one in model.trainable_variables]
        return cls(strategy, state, folder) if state is not None and state.remembers(specs) else None

    def write(self, number: int) -> None:
        """Writes what this worker's replicas remember now."""
        self._files.write(number, self._state.parts())

    def keep(self, numbers: Iterable[int]) -> None:
        """Removes this worker's parts of all other saves."""
        self._files.keep(set(numbers))

    def restore(self, number: int | None) -> str | None:
        """Restores the parts of a save where all workers have found theirs, or returns why not; all must call it.

        Args:
            number: of the save; None where this worker knows of none.

        Raises:
            ValueError: workers ask for different saves.
        """
        parts: list[Part] = []
        reason = "another worker has not found its parts"
        if number is not None:
            try:
                parts = self._files.read(number, self._state.fits)
            except LookupError as error:
                reason = str(error)
        if not all_agree(self._strategy, number or 0, parts[0].num_members if parts else 0):
            return reason
        self._state.restore(parts)
        return None

    def start_anew(self) -> None:
        """Lets compression forget all; all workers must call it."""
        self._state.restore([])

    def are_missed(self) -> bool:
        """Returns whether there are parts of other saves, and nothing that is remembered without them."""
        return self._files.has_any() and not any(part.states or part.slots for part in self._state.parts())


def all_agree(strategy: tf.distribute.Strategy, iteration: int, num_members: int) -> bool:
    """Returns whether all workers have found parts, of one group; all of them must call it.

    Args:
        strategy: that the model trains under.
        iteration: of this worker's model, or another number of the save.
        num_members: of the group whose parts it has found, or 0.

    Raises:
        ValueError: the workers' models are not at the same iteration.
    """
    if len(strategy.extended.worker_devices) == strategy.num_replicas_in_sync:
        return num_members > 0
    mine = strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant([[iteration, num_members]], tf.int64)
    )
    iterations, groups = strategy.gather(mine, axis=0).numpy().T.tolist()
    if len(set(iterations)) > 1:
        raise ValueError(
            "The workers begin at different iterations of the model: their backups are not of the same time. Restore "
            "the same backup on each of them, or remove all and start anew. Received: iterations "
            f"{iterations}, by replica."
        )
    return min(groups) > 0 and len(set(groups)) == 1
