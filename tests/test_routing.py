"""Where a strategy takes its topology from, and which it refuses."""

import pytest
import sums

from tfdp import Topology
from tfdp.routing import check_algorithm, find_topology, layout_of, suited
from tfdp.topology import make_cluster, plan

OF_ONE = '{"devices_per_worker": 2, "hosts": [{"name": "a", "workers": [0], "islands": [[0], [1]]}]}'


def cluster(*hosts):
    addresses = [f"{host}:{2222 + i}" for i, host in enumerate(hosts)]
    return make_cluster({"worker": addresses}, "worker", 0, source="a test")


@pytest.fixture(autouse=True)
def no_topology_in_the_environment(monkeypatch):
    monkeypatch.delenv("TFDP_TOPOLOGY", raising=False)


def test_workers_stand_on_the_hosts_of_their_addresses():
    topology = find_topology(None, cluster("127.0.0.2", "127.0.0.2", "127.0.0.3"), 2)
    assert topology.groups() == ((0, 1, 2, 3), (4, 5))


def test_the_environment_says_where_workers_stand(monkeypatch):
    monkeypatch.setenv("TFDP_TOPOLOGY", sums.THREE_AND_ONE)
    assert find_topology(None, cluster("a", "b", "c", "d"), 1).groups() == ((0, 1, 2), (3,))


@pytest.mark.parametrize("as_what", [str, Topology.from_json])
def test_what_the_user_says_comes_before_the_environment(monkeypatch, as_what):
    monkeypatch.setenv("TFDP_TOPOLOGY", sums.THREE_AND_ONE)
    assert find_topology(as_what(sums.PAIRS), cluster("a", "b", "c", "d"), 1).groups() == ((0, 1), (2, 3))


def test_a_file_is_read(tmp_path):
    (tmp_path / "hosts.json").write_text(sums.PAIRS)
    assert find_topology(tmp_path / "hosts.json", cluster("a", "b", "c", "d"), 2).num_replicas == 8


def test_a_process_by_itself_takes_no_notice_of_the_topology_of_its_cluster(monkeypatch):
    monkeypatch.setenv("TFDP_TOPOLOGY", sums.PAIRS)
    assert find_topology(None, None, 2) == Topology.from_cluster(None, 2)
    monkeypatch.setenv("TFDP_TOPOLOGY", OF_ONE)
    assert find_topology(None, None, 2).groups("island") == ((0,), (1,))


def test_devices_of_a_process_by_itself_may_stand_for_hosts():
    assert find_topology(sums.PAIRS, None, 4).num_hosts == 2


@pytest.mark.parametrize(
    ("wanted", "num_devices", "message"),
    [
        (
            sums.PAIRS,
            3,
            r"^`topology` must place 1 worker\(s\) of 3 device\(s\) each. Received: 4 worker\(s\) with 4 rep",
        ),
        ("nowhere.json", 2, r"^`topology` must be a JSON text .* Received: 'nowhere.json' \(No such file"),
        ("{", 2, r"^`topology` must be JSON, such as"),
    ],
)
def test_a_topology_that_does_not_fit_is_refused(wanted, num_devices, message):
    with pytest.raises(ValueError, match=message):
        find_topology(wanted, None, num_devices)


def test_devices_that_workers_do_not_have_are_refused():
    described = sums.PAIRS.replace('{"hosts"', '{"devices_per_worker": 3, "hosts"')
    with pytest.raises(ValueError, match=r"^The workers must have the devices that `topology` describes"):
        find_topology(described, cluster("a", "b", "c", "d"), 1)


@pytest.mark.parametrize("algorithm", ["ring", "", None, 3])
def test_an_unknown_algorithm_is_refused(algorithm):
    with pytest.raises(ValueError, match=r"^`algorithm` must be one of 'auto', 'flat', .* Received: algorithm="):
        check_algorithm(algorithm)


def test_only_where_not_every_replica_carries_all_a_layout_says_who_does():
    topology = Topology.from_json(sums.PAIRS)
    assert layout_of(plan(topology, "flat"), topology, 100) == ""
    assert layout_of(plan(topology), topology, 100) != layout_of(plan(topology), topology, 200)


def test_gpus_of_a_host_in_several_processes_go_flat_unless_it_is_asked_for():
    topology, gpu, cpu = Topology.from_json(sums.PAIRS), ["/device:GPU:0"], ["/device:CPU:0"]
    assert suited("auto", topology, gpu) == "flat"
    assert suited("auto", topology, cpu) == "auto"
    assert suited("hierarchical", topology, gpu) == "hierarchical"
    assert suited("auto", Topology.from_hosts(["a", "b"], 2), gpu) == "auto"
