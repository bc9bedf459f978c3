"""A communicator whose calls carry a common beginning of their names."""

from collections.abc import Sequence

import tensorflow as tf

from tfdp.collectives.base import Communicator


class PrefixedCommunicator(Communicator):
    """Calls another communicator by longer names, so that equal names of different callers do not meet."""

    def __init__(self, communicator: Communicator, prefix: str) -> None:
        """Puts `prefix` before each name.

        Args:
            communicator: that is called.
            prefix: the same on every member.
        """
        self._communicator, self._prefix = communicator, prefix
        self.size, self.rank = communicator.size, communicator.rank
        self.can_branch, self.can_exchange = communicator.can_branch, communicator.can_exchange

    def sum(self, tensors: Sequence[tf.Tensor], *, name: str) -> list[tf.Tensor]:
        return self._communicator.sum(tensors, name=f"{self._prefix} {name}")

    def gather(self, tensor: tf.Tensor, *, name: str) -> tf.Tensor:
        return self._communicator.gather(tensor, name=f"{self._prefix} {name}")

    def gather_rows(self, tensor: tf.Tensor, *, name: str, counts: tf.Tensor | None = None) -> tf.Tensor:
        return self._communicator.gather_rows(tensor, name=f"{self._prefix} {name}", counts=counts)

    def exchange(self, tensor: tf.Tensor, *, name: str) -> tf.Tensor:
        return self._communicator.exchange(tensor, name=f"{self._prefix} {name}")
