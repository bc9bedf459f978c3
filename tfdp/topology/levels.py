"""Groups of replicas, level by level: islands, hosts, racks."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tfdp.topology.drawing import numbers

ISLAND, HOST, RACK = "island", "host", "rack"


@dataclass(frozen=True)
class Group:
    """Replicas that stand together.

    Attributes:
        name: of the host, the rack, ..; an island is called after its host: "a/0".
        replicas: their global ranks, from the lowest.
    """

    name: str
    replicas: tuple[int, ...]

    @property
    def leader(self) -> int:
        """The replica that speaks for the group: the first."""
        return self.replicas[0]


@dataclass(frozen=True)
class Level:
    """All groups of one kind; every replica is in one of them.

    Attributes:
        name: "island", "host", "rack", ..
        groups: in the order of their leaders.
    """

    name: str
    groups: tuple[Group, ...]


def make_level(name: str, replicas: Mapping[str, Sequence[int]]) -> Level:
    """Returns a level of groups, given the replicas of each by its name."""
    groups = (Group(group, tuple(sorted(members))) for group, members in replicas.items())
    return Level(name, tuple(sorted(groups, key=lambda group: group.leader)))


def check_levels(workers: Sequence[int], levels: Sequence[Level]) -> None:
    """Raises a ValueError unless each level holds every replica once, and each of its groups lies in one of the next.

    Args:
        workers: the worker of each replica. Workers lie within hosts, and may lie in several islands.
        levels: from the smallest groups to the largest.
    """
    num_workers = max(workers, default=-1) + 1
    if not num_workers or list(workers) != sorted(workers) or set(workers) != set(range(num_workers)):
        raise ValueError(
            "`workers` must be the worker of each replica, from 0, those of one worker together. Received: "
            f"workers={tuple(workers)}."
        )
    names = [level.name for level in levels]
    if len(set(names)) < len(names) or (names[:1] != [HOST] and names[:2] != [ISLAND, HOST]):
        raise ValueError(f"`levels` must be islands, if known, then hosts, then others, once each. Received: {names}.")
    _check_partition(levels, num_replicas=len(workers))
    for smaller, larger in itertools.pairwise(levels):
        _check_within(smaller, larger)
    members = {str(worker): [i for i, _ in pairs] for worker, pairs in _by_worker(workers)}
    _check_within(make_level("worker", members), next(level for level in levels if level.name == HOST))


def _check_partition(levels: Sequence[Level], *, num_replicas: int) -> None:
    for level in levels:
        replicas = sorted(replica for group in level.groups for replica in group.replicas)
        if replicas != list(range(num_replicas)) or not all(group.replicas for group in level.groups):
            raise ValueError(f"Every replica must be in one {level.name}. Received: {level.groups}.")
        names = [group.name for group in level.groups]
        twice = next((name for name in names if names.count(name) > 1), None) if len(set(names)) < len(names) else None
        if twice is not None:
            raise ValueError(f"Names of {level.name}s must differ. Received: {twice!r} twice.")


def _check_within(smaller: Level, larger: Level) -> None:
    of_replica = {replica: i for i, group in enumerate(larger.groups) for replica in group.replicas}
    for group in smaller.groups:
        if len({of_replica[replica] for replica in group.replicas}) > 1:
            raise ValueError(
                f"All replicas of one {smaller.name} must be in one {larger.name}. Received: those of {smaller.name} "
                f"{group.name} ({numbers(group.replicas)}) in several."
            )


def _by_worker(workers: Sequence[int]) -> Iterator[tuple[int, Iterator[tuple[int, int]]]]:
    return itertools.groupby(enumerate(workers), key=lambda pair: pair[1])
