"""A communicator whose sums go over several levels of the network."""

from collections.abc import Sequence

import tensorflow as tf

from tfdp.collectives.along_tree import Link, handed_down, specs_of, summed_up
from tfdp.collectives.base import Communicator
from tfdp.topology import Rooted


class LevelledCommunicator(Communicator):
    """Sums up a tree, and gathers and exchanges as another communicator of the same members does."""

    def __init__(
        self, communicator: Communicator, replica: int, tree: Rooted, link: Link, top: Communicator | None = None
    ) -> None:
        """Speaks for `replica`.

        Args:
            communicator: of all members.
            replica: who is spoken for.
            tree: over the members.
            link: between them.
            top: what sums over the children of the tree's root, on those that make their sums; None where the root does
                it, and on all others.
        """
        self._communicator, self._replica, self._link = communicator, replica, link
        self.size, self.rank = communicator.size, communicator.rank
        self.can_branch, self.can_exchange = communicator.can_branch, communicator.can_exchange
        self._top = top
        self._tree = tree

    @classmethod
    def round_the_top(
        cls, communicator: Communicator, replica: int, tree: Rooted, link: Link, top: Communicator | None
    ) -> "LevelledCommunicator":
        """Returns one whose root does nothing itself: `top` sums over the root's children."""
        below = next(child for child in tree.children if replica in _replicas(child))
        return cls(communicator, replica, below, link, top)

    def sum(self, tensors: Sequence[tf.Tensor], *, name: str) -> list[tf.Tensor]:
        like = specs_of(tensors)
        total = summed_up(self._tree, {self._replica: tensors}, like, self._link, name=name)
        if total is not None and self._top is not None:
            total = self._top.sum(total, name=name)
        return handed_down(self._tree, [self._replica], total, like, self._link, name=name)[self._replica]

    def gather(self, tensor: tf.Tensor, *, name: str) -> tf.Tensor:
        return self._communicator.gather(tensor, name=name)

    def gather_rows(self, tensor: tf.Tensor, *, name: str, counts: tf.Tensor | None = None) -> tf.Tensor:
        return self._communicator.gather_rows(tensor, name=name, counts=counts)

    def exchange(self, tensor: tf.Tensor, *, name: str) -> tf.Tensor:
        return self._communicator.exchange(tensor, name=name)


def _replicas(tree: Rooted) -> set[int]:
    return {tree.replica}.union(*map(_replicas, tree.children))
