"""A communicator between replicas of one process."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfdp.collectives.along_tree import Copies, handed_down, specs_of, summed_up
from tfdp.collectives.base import Communicator
from tfdp.collectives.meeting import Meeting
from tfdp.topology import Rooted


class LocalCommunicator(Communicator):
    """Speaks for one of several replicas of this process, which need not be all of them; copies between devices."""

    can_branch = False  # replicas of one process meet outside of a choice only
    can_exchange = True

    def __init__(self, meeting: Meeting, replica: int, tree: Rooted, members: Sequence[int], link: Copies) -> None:
        """Speaks for `replica`.

        Args:
            meeting: of all replicas of the process.
            replica: who is spoken for, one of `members`.
            tree: over the members, along which sums are made.
            members: the replicas of the group, in the order of their ranks in it.
            link: between all of them.
        """
        self.size, self.rank = len(members), list(members).index(replica)
        self._meeting, self._replica, self._tree = meeting, replica, tree
        self._members, self._link = tuple(members), link

    def sum(self, tensors: Sequence[tf.Tensor], *, name: str) -> list[tf.Tensor]:
        like = specs_of(tensors)

        def add(values: Mapping[int, Any]) -> Mapping[int, Any]:
            total = summed_up(self._tree, values, like, self._link, name=name)
            return handed_down(self._tree, values, total, like, self._link, name=name)

        return self._meet(f"sum {name}", add, list(tensors))

    def gather(self, tensor: tf.Tensor, *, name: str) -> tf.Tensor:
        return self._meet(f"gather {name}", self._on_each(lambda rank, parts: tf.concat(parts, axis=0)), tensor)

    def gather_rows(self, tensor: tf.Tensor, *, name: str, counts: tf.Tensor | None = None) -> tf.Tensor:
        return self.gather(tensor, name=name)

    def exchange(self, tensor: tf.Tensor, *, name: str) -> tf.Tensor:
        to_each = self._on_each(lambda rank, parts: tf.stack([rows[rank] for rows in parts]))
        return self._meet(f"exchange {name}", to_each, tensor)

    def _on_each(self, function: Callable[[int, list[Any]], Any]) -> Callable[[Mapping[int, Any]], Mapping[int, Any]]:
        """Returns what gives each member the result of `function` of its rank and the values of all, on its device."""

        def call(values: Mapping[int, Any]) -> Mapping[int, Any]:
            parts, results = [values[member] for member in self._members], {}
            for rank, member in enumerate(self._members):
                with tf.device(self._link.device(member)):
                    results[member] = function(rank, parts)
            return results

        return call

    def _meet(self, name: str, function: Callable[[Mapping[int, Any]], Mapping[int, Any]], value: Any) -> Any:
        return self._meeting.of(self._members, self._replica, name, function, value)
