"""The groups of a topology as a tree, and which replica carries what through it."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple


class Branch(NamedTuple):
    """Replicas that reduce among themselves before others hear of it.

    Attributes:
        replicas: all of them.
        children: the groups within; empty for a single replica.
    """

    replicas: tuple[int, ...]
    children: tuple["Branch", ...] = ()

    def carrier(self, turn: int) -> int:
        """Returns the replica that carries what has this turn: a child's, and turns go round the children first."""
        if not self.children:
            return self.replicas[0]
        return self.children[turn % len(self.children)].carrier(turn // len(self.children))

    def rooted(self, turn: int) -> "Rooted":
        """Returns the way through this tree of what has this turn."""
        within = turn // max(len(self.children), 1)
        return Rooted(self.carrier(turn), tuple(child.rooted(within) for child in self.children))


class Rooted(NamedTuple):
    """A tree through which one thing goes up, added up on its way, and down again.

    Attributes:
        replica: where the sum of all below is made.
        children: where the summands come from, in the order in which they are added; empty for a replica's own.
    """

    replica: int
    children: tuple["Rooted", ...] = ()

    def edges(self) -> Iterator[tuple[int, int]]:
        """Yields (from, to) for each way between two replicas."""
        for child in self.children:
            if child.replica != self.replica:
                yield child.replica, self.replica
            yield from child.edges()


def leaf(replica: int) -> Branch:
    """Returns the tree of a single replica."""
    return Branch((replica,))


def grown(members: Sequence[Branch], levels: Sequence[Sequence[Sequence[int]]]) -> Branch:
    """Returns the tree over `members`.

    Args:
        members: each lies within one group of every level.
        levels: groups of replicas, from the smallest to the largest. Replicas that are in no member do not count.
    """
    branches = list(members)
    for groups in levels:
        of_replica = {replica: i for i, group in enumerate(groups) for replica in group}
        within: dict[int, list[Branch]] = {}
        for branch in branches:
            within.setdefault(of_replica[branch.replicas[0]], []).append(branch)
        branches = [joined(group) for group in within.values()]
    return joined(branches)


def joined(branches: Sequence[Branch]) -> Branch:
    """Returns the tree whose children are `branches`; a single one is that itself."""
    if len(branches) == 1:
        return branches[0]
    return Branch(tuple(replica for branch in branches for replica in branch.replicas), tuple(branches))


def binary(branches: Sequence[Branch]) -> Branch:
    """Returns the tree in which two are joined, and two of these, ..: as few steps as can be.

    References:
        Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in MPICH" (IJHPCA 2005),
        section 4.3.
    """
    while len(branches) > 1:
        branches = [joined(branches[i : i + 2]) for i in range(0, len(branches), 2)]
    return branches[0]
