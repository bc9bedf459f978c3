"""Between which groups of replicas the slow links are, and how sums go up to them and down again."""

from typing import NamedTuple

from tfdp.topology.branches import Branch, Rooted, binary, grown, joined, leaf
from tfdp.topology.levels import HOST, ISLAND
from tfdp.topology.structure import Topology

ALGORITHMS = ("auto", "flat", "hierarchical", "tree")


class Plan(NamedTuple):
    """How replicas reduce.

    Attributes:
        members: those between which the slow links are, as trees: hosts, or the islands of a single host, or replicas.
        kind: what a member is: "host", "island", "replica", ..
        above: groups of replicas that members are in, from the smallest to the largest: racks, ..
        in_pairs: whether what members sum goes through a tree of pairs, not round a ring.
    """

    members: tuple[Branch, ...]
    kind: str
    above: tuple[tuple[tuple[int, ...], ...], ...] = ()
    in_pairs: bool = False

    @property
    def num_replicas(self) -> int:
        """The number of replicas of all members."""
        return sum(len(member.replicas) for member in self.members)

    @property
    def num_turns(self) -> int:
        """The number of ways through the plan: as many as the largest member has replicas."""
        return max(len(member.replicas) for member in self.members)

    @property
    def is_flat(self) -> bool:
        """Whether every replica is a member."""
        return self.num_turns == 1

    @property
    def is_plain(self) -> bool:
        """Whether every replica is a member, and they sum round one ring."""
        has_racks = any(1 < len(groups) < len(self.members) for groups in self.above)
        return self.is_flat and not self.in_pairs and not has_racks

    def member_of(self, replica: int) -> int:
        """Returns the position of the member that has `replica`."""
        return next(i for i, member in enumerate(self.members) if replica in member.replicas)

    def carriers(self, turn: int) -> tuple[int, ...]:
        """Returns who carries what has this turn: a replica of each member, from the lowest."""
        return tuple(sorted(member.carrier(turn) for member in self.members))

    def turns_of(self, replica: int) -> list[int]:
        """Returns the turns that a replica carries."""
        return [turn for turn in range(self.num_turns) if replica in self.carriers(turn)]

    def tops(self, turn: int) -> tuple[int, ...]:
        """Returns who of the carriers makes the sum of a rack, or of what else is outermost, from the lowest."""
        return tuple(sorted(child.replica for child in self.over(turn).rooted(turn).children))

    def whole(self, turn: int) -> Rooted:
        """Returns the way of what has this turn through the members and over them, up to one replica."""
        within = {member.carrier(turn): member.rooted(turn) for member in self.members}

        def grown_on(tree: Rooted) -> Rooted:
            if not tree.children:
                return within[tree.replica]
            return Rooted(tree.replica, tuple(grown_on(child) for child in tree.children))

        return grown_on(self.over(turn).rooted(turn))

    def groups(self) -> list[tuple[int, ...]]:
        """Returns every group of replicas that meets by itself, each once, in an order that follows from the plan."""
        groups: dict[tuple[int, ...], None] = {}
        for turn in range(self.num_turns):
            over = self.over(turn).rooted(turn)
            edges = [
                edge for tree in (over, *(member.rooted(turn) for member in self.members)) for edge in tree.edges()
            ]
            ways = [(min(edge), max(edge)) for edge in edges]
            groups |= dict.fromkeys([self.carriers(turn), self.tops(turn), *ways])
        return [group for group in groups if len(group) > 1]

    def over(self, turn: int) -> Branch:
        """Returns the tree over the members' carriers: racks and what is above, or pairs."""
        of_member = [member.carrier(turn) for member in self.members]
        leaves = [leaf(replica) for replica in of_member]
        within = {replica: i for i, member in enumerate(self.members) for replica in member.replicas}
        levels = [
            [[of_member[i] for i in dict.fromkeys(within[replica] for replica in group)] for group in groups]
            for groups in self.above
        ]
        tree = grown(leaves, levels)
        return _in_pairs(tree) if self.in_pairs else tree


def plan(topology: Topology, algorithm: str = "auto") -> Plan:
    """Returns how the replicas of a topology reduce.

    Args:
        topology: where they stand.
        algorithm: "flat": all replicas alike, whoever shares a host. "hierarchical": the hosts (of a single host, its
            islands) sum up first, and their sums travel over racks and what else is known. "tree": as "hierarchical",
            in pairs. "auto": "hierarchical" where replicas share a host and others do not, else "flat".
    """
    replicas = tuple(leaf(replica) for replica in range(topology.num_replicas))
    if algorithm == "flat" or (algorithm == "auto" and topology.is_flat and not _has_islands_alone(topology)):
        return Plan(replicas, "replica")
    if algorithm == "tree" and topology.is_flat and not _has_islands_alone(topology):
        if topology.num_workers in (1, topology.num_replicas):
            return Plan(replicas, "replica", in_pairs=True)
        workers = [[i for i, one in enumerate(topology.workers) if one == worker] for worker in set(topology.workers)]
        return Plan(tuple(joined([replicas[i] for i in worker]) for worker in workers), "worker", in_pairs=True)
    slow = HOST if topology.num_hosts > 1 or not _has_islands_alone(topology) else ISLAND
    members = tuple(_member(topology, group) for group in topology.groups(slow))
    names = [level.name for level in topology.levels]
    above = tuple(topology.groups(name) for name in names[names.index(slow) + 1 :] if slow == HOST)
    return Plan(members, slow, above, in_pairs=algorithm == "tree")


def _has_islands_alone(topology: Topology) -> bool:
    """Whether islands of several replicas are all that tells replicas apart, which are all in one process."""
    if topology.num_workers > 1 or not topology.has_level(ISLAND):
        return False
    return 1 < len(topology.groups(ISLAND)) < topology.num_replicas


def _member(topology: Topology, replicas: tuple[int, ...]) -> Branch:
    """Returns the tree within a host or an island: what shares a process goes up together."""
    of_worker: dict[int, list[int]] = {}
    for replica in range(topology.num_replicas):
        of_worker.setdefault(topology.worker_of(replica), []).append(replica)
    workers = list(of_worker.values())
    if not topology.has_level(ISLAND):
        return grown([leaf(replica) for replica in replicas], [workers])
    islands = [list(island) for island in topology.groups(ISLAND)]
    both = [[one for one in island if one in set(worker)] for island in islands for worker in workers]
    is_within_workers = all(len({topology.worker_of(one) for one in island}) == 1 for island in islands)
    levels = [[group for group in both if group], islands, *([workers] if is_within_workers else [])]
    return grown([leaf(replica) for replica in replicas], levels)


def _in_pairs(tree: Branch) -> Branch:
    if not tree.children:
        return tree
    return binary([_in_pairs(child) for child in tree.children])
