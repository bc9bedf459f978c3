"""The way of buckets from a replica to the slow links and back."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import tensorflow as tf

from tfdp.collectives.along_tree import Link, handed_down, specs_of, summed_up
from tfdp.collectives.base import Communicator
from tfdp.collectives.meeting import Meeting
from tfdp.topology import Plan

Bucket = list[tf.Tensor]


class Route(Protocol):
    """One replica's way; all replicas make the same calls in the same order.

    Attributes:
        everyone: what speaks for this replica among all replicas.
        replica: this one.
        member: the position of this replica's host, or else of this replica, among the members.
        num_members: between how many hosts, or replicas, the slow links are.
        num_turns: buckets with turns 0 to `num_turns` - 1 are carried by different replicas of a host.
        kind: what a member is: "host", "replica", ..
    """

    everyone: Communicator
    replica: int
    member: int
    num_members: int
    num_turns: int
    kind: str

    def carries(self, turn: int) -> bool:
        """Returns whether this replica carries the buckets of a turn over the slow links."""

    def members(self, turn: int) -> Communicator:
        """Returns what speaks for this replica's host among those who carry the buckets of a turn."""

    def up(self, buckets: Sequence[Bucket], turns: Sequence[int], *, name: str) -> list[Bucket | None]:
        """Returns the sums over this replica's host of those buckets that this one carries.

        Args:
            buckets: of this replica, each of one dtype.
            turns: of each bucket.
            name: of what is reduced, unlike any other in a step.
        """

    def down(
        self, buckets: Sequence[Bucket | None], like: Sequence[Bucket], turns: Sequence[int], *, name: str
    ) -> list[Bucket]:
        """Returns all buckets, from those who carry them.

        Args:
            buckets: those that this replica carries.
            like: what the tensors of all buckets are like, by specs or tensors.
            turns: of each bucket.
            name: as for `up`.
        """


class FlatRoute:
    """The way of a replica that is a member itself: it carries all of its buckets."""

    num_turns = 1
    kind = "replica"

    def __init__(self, everyone: Communicator) -> None:
        self.everyone, self.num_members = everyone, everyone.size
        self.replica = self.member = everyone.rank

    def carries(self, turn: int) -> bool:
        return True

    def members(self, turn: int) -> Communicator:
        return self.everyone

    def up(self, buckets: Sequence[Bucket], turns: Sequence[int], *, name: str) -> list[Bucket | None]:
        return list(buckets)

    def down(
        self, buckets: Sequence[Bucket | None], like: Sequence[Bucket], turns: Sequence[int], *, name: str
    ) -> list[Bucket]:
        return [bucket for bucket in buckets if bucket is not None]


class PlannedRoute:
    """The way by a plan: up to the carrier of each bucket, and down from it."""

    def __init__(
        self, plan: Plan, everyone: Communicator, meeting: Meeting, link: Link, members: Mapping[int, Communicator]
    ) -> None:
        """Makes the way of one replica.

        Args:
            plan: who shares a host, and who carries what.
            everyone: what speaks for this replica among all.
            meeting: of the replicas of this process.
            link: between replicas.
            members: by turn, for those that this replica carries.
        """
        self.everyone, self.replica, self.member = everyone, everyone.rank, plan.member_of(everyone.rank)
        self.num_members, self.num_turns, self.kind = len(plan.members), plan.num_turns, plan.kind
        self._plan, self._meeting, self._link, self._members = plan, meeting, link, members
        self._trees_here = [member for member in plan.members if not set(meeting.replicas).isdisjoint(member.replicas)]

    def carries(self, turn: int) -> bool:
        return turn in self._members

    def members(self, turn: int) -> Communicator:
        return self._members[turn]

    def up(self, buckets: Sequence[Bucket], turns: Sequence[int], *, name: str) -> list[Bucket | None]:
        def add(values: Mapping[int, Sequence[Bucket]]) -> Mapping[int, list[Bucket | None]]:
            sums: dict[int, list[Bucket | None]] = {replica: [None] * len(turns) for replica in values}
            for i, turn in enumerate(turns):
                for member in self._trees_here:
                    tree = member.rooted(turn)
                    of_bucket = {replica: values[replica][i] for replica in values if replica in member.replicas}
                    total = summed_up(tree, of_bucket, specs_of(buckets[i]), self._link, name=f"{name} {i}")
                    if total is not None:
                        sums[tree.replica][i] = total
            return sums

        return self._meeting.of_all(self.replica, f"up {name}", add, buckets)

    def down(
        self, buckets: Sequence[Bucket | None], like: Sequence[Bucket], turns: Sequence[int], *, name: str
    ) -> list[Bucket]:
        def hand(values: Mapping[int, Sequence[Bucket | None]]) -> Mapping[int, list[Any]]:
            received: dict[int, list[Any]] = {replica: [] for replica in values}
            for i, turn in enumerate(turns):
                for member in self._trees_here:
                    tree = member.rooted(turn)
                    here = [replica for replica in values if replica in member.replicas]
                    total = values[tree.replica][i] if tree.replica in values else None
                    specs = specs_of(like[i])
                    handed = handed_down(tree, here, total, specs, self._link, name=f"{name} {i}")
                    for replica, bucket in handed.items():
                        received[replica].append(bucket)
            return received

        return self._meeting.of_all(self.replica, f"down {name}", hand, buckets)
