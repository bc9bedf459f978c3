"""Plans say who adds up what, who carries it on, and which groups meet: the same in every process."""

import pytest

from tfdp.topology import ALGORITHMS, Branch, Rooted, Topology, plan

FOUR = Topology.from_hosts(["a", "a", "b", "b"])
THREE_AND_ONE = Topology.from_hosts(["a", "a", "a", "b"])
RACKS = Topology.from_hosts(["a", "b", "c", "d"], 2, racks={"a": "r", "b": "r", "c": "s", "d": "s"})
ISLANDS = Topology.from_cluster(None, 4).with_islands({"localhost": [[0, 3], [1, 2]]})
ONE_HOST = Topology.from_hosts(["a"] * 3, 2)
TOPOLOGIES = {
    "four": FOUR,
    "three and one": THREE_AND_ONE,
    "racks": RACKS,
    "islands": ISLANDS,
    "one host": ONE_HOST,
    "alone": Topology.from_cluster(None),
    "each on its own": Topology.from_hosts(["a", "b", "c"]),
    "islands on hosts": Topology.from_hosts(["a", "b"], 4).with_islands({"a": [[0, 1], [2, 3]]}),
    "islands of workers": Topology.from_hosts(["a"] * 4 + ["b"]).with_islands({"a": [[0, 1], [2, 3]]}),
    "crossed": Topology.from_json(
        '{"hosts": [{"name": "a", "workers": [0, 3]}, {"name": "b", "workers": [1, 2]}], "devices_per_worker": 2}'
    ),
}


def leaves(tree: Rooted) -> list[int]:
    return [leaf for child in tree.children for leaf in leaves(child)] if tree.children else [tree.replica]


def roots(tree: Rooted) -> list[Rooted]:
    return [tree, *(root for child in tree.children for root in roots(child))]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("name", TOPOLOGIES)
def test_every_way_adds_up_each_replica_once_and_each_sum_is_made_by_one_of_its_own(name, algorithm):
    topology = TOPOLOGIES[name]
    made = plan(topology, algorithm)
    assert sorted(replica for member in made.members for replica in member.replicas) == list(
        range(topology.num_replicas)
    )
    for turn in range(made.num_turns):
        whole = made.whole(turn)
        assert sorted(leaves(whole)) == list(range(topology.num_replicas))
        for tree in roots(whole):
            assert tree.replica in leaves(tree)
            assert not tree.children or tree.replica in [child.replica for child in tree.children]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("name", TOPOLOGIES)
def test_every_pair_that_sends_and_every_group_that_sums_is_a_group_of_the_plan(name, algorithm):
    made = plan(TOPOLOGIES[name], algorithm)
    groups = made.groups()
    assert len(set(groups)) == len(groups)
    assert all(list(group) == sorted(group) and len(group) > 1 for group in groups)
    for turn in range(made.num_turns):
        assert len(made.members) == 1 or made.carriers(turn) in groups
        for edge in made.whole(turn).edges():
            between_tops = set(edge) <= set(made.tops(turn)) or set(edge) <= set(made.carriers(turn))
            assert tuple(sorted(edge)) in groups or between_tops


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_the_replicas_of_a_member_take_turns(name):
    made = plan(TOPOLOGIES[name], "hierarchical")
    for member in made.members:
        carried = [member.carrier(turn) for turn in range(len(member.replicas))]
        assert sorted(carried) == sorted(member.replicas)
    for replica in range(made.num_replicas):
        assert made.turns_of(replica) == [turn for turn in range(made.num_turns) if replica in made.carriers(turn)]


@pytest.mark.parametrize(
    ("topology", "algorithm", "kind", "num_members"),
    [
        (FOUR, "auto", "host", 2),
        (FOUR, "flat", "replica", 4),
        (FOUR, "tree", "host", 2),
        (THREE_AND_ONE, "auto", "host", 2),
        (RACKS, "auto", "host", 4),
        (ISLANDS, "auto", "island", 2),
        (ISLANDS, "flat", "replica", 4),
        (ONE_HOST, "auto", "replica", 6),
        (ONE_HOST, "hierarchical", "host", 1),
        (ONE_HOST, "tree", "worker", 3),
        (TOPOLOGIES["each on its own"], "auto", "replica", 3),
        (TOPOLOGIES["each on its own"], "tree", "replica", 3),
    ],
)
def test_members_are_what_the_slow_links_lie_between(topology, algorithm, kind, num_members):
    made = plan(topology, algorithm)
    assert (made.kind, len(made.members)) == (kind, num_members)


def test_sums_of_hosts_go_over_racks():
    made = plan(RACKS, "auto")
    assert made.carriers(0) == (0, 2, 4, 6)
    assert made.carriers(1) == (1, 3, 5, 7)
    assert made.over(0).rooted(0) == Rooted(0, (Rooted(0, (Rooted(0), Rooted(2))), Rooted(4, (Rooted(4), Rooted(6)))))
    assert made.tops(0) == (0, 4)


def test_pairs_are_joined_by_pairs():
    made = plan(Topology.from_hosts(list("abcde")), "tree")
    assert sorted(made.over(0).rooted(0).edges()) == [(1, 0), (2, 0), (3, 2), (4, 0)]


def test_replicas_of_one_process_add_up_before_they_send():
    made = plan(TOPOLOGIES["crossed"], "auto")
    for turn in range(made.num_turns):
        for member in made.members:
            between = [edge for edge in member.rooted(turn).edges() if edge[0] // 2 != edge[1] // 2]
            assert len(between) == 1


def test_a_single_replica_is_its_own_tree():
    made = plan(Topology.from_cluster(None), "hierarchical")
    assert made.members == (Branch((0,)),)
    assert made.whole(0) == Rooted(0)
    assert made.groups() == []
