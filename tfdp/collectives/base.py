"""The interface of a communicator."""

import abc
from collections.abc import Sequence

import tensorflow as tf


class Communicator(abc.ABC):
    """Speaks for one member of a group of replicas; every member makes the same calls in the same order.

    Attributes:
        size: the number of members of the group.
        rank: the position of this member in it, 0 to size - 1.
        can_branch: whether its calls may stand within a tf.cond that all members decide alike.
        can_exchange: whether `exchange` sends each member its row alone, not all rows to all.
    """

    size: int
    rank: int
    can_branch: bool
    can_exchange: bool

    @abc.abstractmethod
    def sum(self, tensors: Sequence[tf.Tensor], *, name: str) -> list[tf.Tensor]:
        """Returns the element-wise sums of `tensors` over all members: bitwise equal on every member.

        The tensors travel together, packed as suits what carries them.

        Args:
            tensors: of one dtype, each with the same static shape on every member.
            name: what is reduced, the same on every member and unlike the name of every other reduction of a step.
        """

    @abc.abstractmethod
    def gather(self, tensor: tf.Tensor, *, name: str) -> tf.Tensor:
        """Returns the rows of every member's `tensor`, joined along the first axis by rank.

        Args:
            tensor: [rows, ...], of the same static shape on every member.
            name: as for `sum`.
        """

    @abc.abstractmethod
    def gather_rows(self, tensor: tf.Tensor, *, name: str, counts: tf.Tensor | None = None) -> tf.Tensor:
        """Returns the rows of every member's `tensor`, as `gather` does, where their numbers differ.

        Args:
            tensor: [rows, ...]; the number of rows may differ between members and from step to step.
            name: as for `sum`.
            counts: int [size], how many rows each member has; None finds out.
        """

    @abc.abstractmethod
    def exchange(self, tensor: tf.Tensor, *, name: str) -> tf.Tensor:
        """Returns what every member has for this one: row i of the result is row `rank` of member i's `tensor`.

        Args:
            tensor: [size, ...], of the same static shape on every member.
            name: as for `sum`.
        """

    def mean(self, tensors: Sequence[tf.Tensor], *, name: str) -> list[tf.Tensor]:
        """Returns the element-wise means of `tensors` over all members; see `sum`."""
        return [total / tf.cast(self.size, total.dtype) for total in self.sum(tensors, name=name)]
