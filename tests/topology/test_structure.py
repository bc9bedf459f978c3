"""Where replicas stand: groups, leaders, drawings and JSON."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tfdp
from tfdp.topology import Group, Level, Topology, make_cluster
from tfdp.topology.levels import make_level

fixed_examples = settings(derandomize=True, database=None, deadline=None)


def cluster(*addresses, rank=0):
    return make_cluster({"worker": list(addresses)}, "worker", rank, source="a test")


UNEQUAL = Topology.from_hosts(["a", "a", "a", "b"])
RACKS = Topology.from_hosts(["a", "b", "c", "d"], 2, racks={"a": "r1", "b": "r1", "c": "r2", "d": "r2"})


@st.composite
def topologies(draw):
    hosts = draw(st.lists(st.sampled_from(["a", "b", "c", "d"]), min_size=1, max_size=8))
    devices = draw(st.lists(st.integers(1, 3), min_size=len(hosts), max_size=len(hosts)))
    racks = draw(st.none() | st.fixed_dictionaries({host: st.sampled_from(["r1", "r2"]) for host in "abcd"}))
    topology = Topology.from_hosts(hosts, devices, racks=racks)
    if draw(st.booleans()):
        islands = {}
        for host in topology.hosts:
            members = [[], [], []]
            for device in range(len(topology.replicas_of(host))):
                members[draw(st.integers(0, 2))].append(device)
            islands[host] = [island for island in members if island]
        topology = topology.with_islands(islands)
    return topology


# Groups and leaders


@fixed_examples
@given(topologies())
def test_every_replica_is_in_one_group_of_each_level_and_groups_lie_in_groups(topology):
    for level in topology.levels:
        replicas = sorted(replica for group in topology.groups(level.name) for replica in group)
        assert replicas == list(range(topology.num_replicas))
        assert topology.leaders(level.name) == tuple(group[0] for group in topology.groups(level.name))
        assert list(topology.leaders(level.name)) == sorted(topology.leaders(level.name))
    for smaller, larger in zip(topology.levels, topology.levels[1:], strict=False):
        for group in smaller.groups:
            assert {topology.group_of(replica, larger.name) for replica in group.replicas} == {
                topology.group_of(group.leader, larger.name)
            }


@fixed_examples
@given(topologies())
def test_a_topology_comes_back_from_its_json(topology):
    back = Topology.from_json(topology.to_json())
    assert back == topology
    assert hash(back) == hash(topology)
    assert str(back) == str(topology)


@fixed_examples
@given(topologies())
def test_the_drawing_has_every_group_and_every_worker(topology):
    lines = str(topology).splitlines()
    for level in topology.levels:
        for group in level.groups:
            assert sum(line.endswith(f"── {level.name} {group.name}") for line in lines) == 1
    for worker in range(topology.num_workers):
        assert any(f"── worker {worker}: replica" in line for line in lines)


def test_hosts_may_be_unequal():
    assert UNEQUAL.groups() == ((0, 1, 2), (3,))
    assert UNEQUAL.leaders() == (0, 3)
    assert (UNEQUAL.num_hosts, UNEQUAL.has_equal_hosts, UNEQUAL.is_flat) == (2, False, False)


def test_replicas_know_their_worker_host_and_rack():
    assert [RACKS.worker_of(i) for i in range(8)] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [RACKS.host_of(i) for i in range(8)] == list("aabbccdd")
    assert [RACKS.rack_of(i) for i in range(8)] == ["r1"] * 4 + ["r2"] * 4
    assert RACKS.replicas_of("b") == (2, 3)
    assert RACKS.replicas_of("r2", "rack") == (4, 5, 6, 7)
    assert RACKS.workers_of("d") == (3,)
    assert RACKS.group_of(5, "rack") == Group("r2", (4, 5, 6, 7))
    assert RACKS.has_equal_hosts
    assert UNEQUAL.rack_of(0) is None


def test_workers_of_a_host_need_not_follow_each_other():
    topology = Topology.from_hosts(["b", "a", "b"], [1, 2, 1])
    assert topology.hosts == ("b", "a")
    assert topology.groups() == ((0, 3), (1, 2))


@pytest.mark.parametrize(
    ("hosts", "devices", "racks", "flat"),
    [
        (["a"], 1, None, True),
        (["a", "a"], 4, None, True),
        (["a", "b"], 1, None, True),
        (["a", "b"], 2, None, False),
        (["a", "a", "b"], 1, None, False),
        (["a", "b"], 1, {"a": "r", "b": "r"}, True),
        (["a", "b", "c", "d"], 1, {"a": "r", "b": "r", "c": "s", "d": "s"}, False),
    ],
)
def test_a_topology_is_flat_where_hosts_and_racks_say_nothing(hosts, devices, racks, flat):
    assert Topology.from_hosts(hosts, devices, racks=racks).is_flat == flat


def test_islands_do_not_make_a_host_less_flat():
    assert Topology.from_hosts(["a"], 4).with_islands({"a": [[0, 1], [2, 3]]}).is_flat


def test_a_topology_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        UNEQUAL.workers = (0,)


def test_users_find_it_in_tfdp():
    assert tfdp.Topology is Topology


# From clusters


def test_workers_whose_addresses_name_one_host_are_on_one_host():
    workers = cluster("localhost:1", "[::1]:2", "127.0.0.1:3", "b:1")
    topology = Topology.from_cluster(workers, 2, resolve=lambda name: ["10.0.0.2"])
    assert topology.hosts == ("localhost", "b")
    assert topology.groups() == ((0, 1, 2, 3, 4, 5), (6, 7))


def test_every_worker_of_a_cluster_has_the_same_topology():
    addresses = ("127.0.0.2:1", "127.0.0.3:1", "127.0.0.2:2")
    found = [Topology.from_cluster(cluster(*addresses, rank=rank)) for rank in range(3)]
    assert found[0] == found[1] == found[2]
    assert found[0].groups() == ((0, 2), (1,))


def test_the_chief_comes_first():
    workers = make_cluster({"worker": ["b:1", "a:2"], "chief": ["a:1"]}, "chief", 0, source="a test")
    assert Topology.from_cluster(workers, resolve=None).groups() == ((0, 2), (1,))


def test_without_a_cluster_there_is_one_worker_on_this_host():
    topology = Topology.from_cluster(None, 2)
    assert (topology.hosts, topology.num_workers, topology.num_replicas) == (("localhost",), 1, 2)


def test_racks_are_told_by_host():
    topology = Topology.from_cluster(cluster("a:1", "b:1", "a:2"), racks={"a": "r1", "b": "r2"}, resolve=None)
    assert topology.groups("rack") == ((0, 2), (1,))
    assert [level.name for level in topology.levels] == ["host", "rack"]


def test_a_host_without_a_rack_is_named():
    with pytest.raises(ValueError, match=r"`racks` must name the rack of every host: a, b\. Received: none of 'b'\."):
        Topology.from_cluster(cluster("a:1", "b:1"), racks={"a": "r1"}, resolve=None)


@pytest.mark.parametrize("devices", [0, [1], [1, 2, 3], [1, 0]])
def test_wrong_numbers_of_devices_are_refused(devices):
    with pytest.raises(ValueError, match=r"at least 1, or one for each of 2 workers\. Received") as raised:
        Topology.from_hosts(["a", "b"], devices)
    assert repr(devices) in str(raised.value)


# Islands


def test_islands_lie_within_hosts_and_may_join_and_part_workers():
    topology = Topology.from_hosts(["a", "a", "b"], [1, 3, 2]).with_islands({"a": [[2, 3], [0, 1]]})
    assert topology.groups("island") == ((0, 1), (2, 3), (4, 5))
    assert [group.name for group in topology.level("island").groups] == ["a/0", "a/1", "b/0"]
    assert topology.group_of(3, "island").leader == 2


@pytest.mark.parametrize("islands", [[[0]], [[0, 1], [1]], [[0, 1, 2]], []])
def test_islands_must_hold_each_device_once(islands):
    with pytest.raises(ValueError, match=r"islands of host 'a' must hold each of its devices 0 to 1 once"):
        Topology.from_hosts(["a"], 2).with_islands({"a": islands})


def test_islands_of_a_host_that_there_is_not_are_refused():
    with pytest.raises(ValueError, match=r"Islands must be of the hosts a\. Received: 'b'"):
        Topology.from_hosts(["a"]).with_islands({"b": [[0]]})


# What is refused


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: UNEQUAL.level("rack"), r"The level must be one of host\. Received: 'rack'"),
        (lambda: UNEQUAL.replicas_of("c"), r"The host must be one of a, b\. Received: 'c'"),
        (lambda: UNEQUAL.group_of(4), r"from 0 to 3\. Received: 4"),
        (lambda: Topology.from_hosts([]), "must name the workers"),
    ],
)
def test_what_there_is_not_is_refused_with_what_there_is(ask, message):
    with pytest.raises(ValueError, match=message):
        ask()


HOSTS = make_level("host", {"a": [0, 1], "b": [2]})


@pytest.mark.parametrize(
    ("workers", "levels", "message"),
    [
        ((), [HOSTS], "`workers` must be the worker of each replica"),
        ((0, 2, 2), [HOSTS], "`workers` must be"),
        ((0, 1, 0), [HOSTS], "`workers` must be"),
        ((0, 1, 2), [], "`levels` must be islands, if known, then hosts"),
        ((0, 1, 2), [make_level("rack", {"r": [0, 1, 2]}), HOSTS], "`levels` must be islands"),
        ((0, 1, 2), [HOSTS, HOSTS], "`levels` must be islands"),
        ((0, 1, 2), [make_level("host", {"a": [0, 1]})], "Every replica must be in one host"),
        ((0, 1, 2), [Level("host", (Group("a", (0, 1)), Group("a", (2,))))], "Names of hosts must differ"),
        ((0, 1, 1), [HOSTS], r"All replicas of one worker must be in one host\. Received: those of worker 1 \(1-2\)"),
        (
            (0, 1, 2),
            [HOSTS, make_level("rack", {"r": [0], "s": [1, 2]})],
            "All replicas of one host must be in one rack",
        ),
        ((0, 1, 2), [make_level("island", {"x": [0], "y": [1, 2]}), HOSTS], "one island must be in one host"),
    ],
)
def test_levels_that_do_not_fit_are_refused(workers, levels, message):
    with pytest.raises(ValueError, match=message):
        Topology(workers, tuple(levels))


# Lines and drawings


def test_workers_compare_groups_and_not_names():
    here = Topology.from_hosts(["a", "a", "b"])
    there = Topology.from_hosts(["x", "x", "y"])
    assert here.lines() == there.lines()
    assert here.lines() == [
        "3 replicas",
        "worker with replica 0",
        "worker with replica 1",
        "worker with replica 2",
        "host with replicas 0-1",
        "host with replica 2",
    ]
    assert here.line_names() == ["", "0", "1", "2", "a", "b"]


@fixed_examples
@given(topologies(), topologies())
def test_lines_are_equal_exactly_where_all_groups_are(one, other):
    same = one.workers == other.workers and [(level.name, one.groups(level.name)) for level in one.levels] == [
        (level.name, other.groups(level.name)) for level in other.levels
    ]
    assert (one.lines() == other.lines()) == same
    assert len(one.lines()) == len(one.line_names())


def test_a_topology_is_drawn_as_a_tree():
    topology = Topology.from_hosts(["a", "a", "b"], 2, racks={"a": "r1", "b": "r2"})
    assert str(topology.with_islands({"a": [[0, 1, 2], [3]]})).splitlines() == [
        "6 replicas of 3 workers, on 2 hosts in 2 racks",
        "├── rack r1",
        "│   └── host a",
        "│       ├── island a/0",
        "│       │   ├── worker 0: replicas 0-1",
        "│       │   └── worker 1: replica 2",
        "│       └── island a/1",
        "│           └── worker 1: replica 3",
        "└── rack r2",
        "    └── host b",
        "        └── island b/0",
        "            └── worker 2: replicas 4-5",
    ]
