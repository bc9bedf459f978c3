"""JSON in which users describe hosts."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdp.topology import Topology
from tfdp.topology.description import Description, Host, read, write

fixed_examples = settings(derandomize=True, database=None, deadline=None)

TWO_RACKS = {
    "racks": [
        {"name": "r1", "hosts": [{"name": "a", "workers": [0, 1], "islands": [[0, 1], [2, 3]]}]},
        {"name": "r2", "hosts": [{"name": "b", "workers": [2]}, {"name": "c", "workers": [3]}]},
    ]
}
A, B = {"name": "a", "workers": [0]}, {"name": "b", "workers": [1]}


def refusal(text):
    with pytest.raises(ValueError) as raised:
        Topology.from_json(text if isinstance(text, str) else json.dumps(text), source="TFDP_TOPOLOGY")
    return str(raised.value)


def test_racks_hold_hosts():
    assert read(json.dumps(TWO_RACKS), source="a test") == Description(
        hosts=(
            Host("a", (0, 1), ("r1",), ((0, 1), (2, 3))),
            Host("b", (2,), ("r2",)),
            Host("c", (3,), ("r2",)),
        ),
        levels_above=("rack",),
    )


def test_a_description_comes_back_from_its_text():
    description = read(json.dumps({**TWO_RACKS, "devices_per_worker": [2, 2, 1, 1]}), source="a test")
    assert read(write(description), source="a test") == description


def test_hosts_may_stand_alone():
    topology = Topology.from_json(json.dumps({"hosts": [A, B]}))
    assert (topology.groups(), topology.has_level("rack")) == (((0,), (1,)), False)


def test_there_may_be_any_number_of_levels():
    text = json.dumps(
        {
            "devices_per_worker": 2,
            "zones": [
                {"name": "east", "rows": [{"name": "1", "racks": [{"name": "r1", "hosts": [A]}]}]},
                {"name": "west", "rows": [{"name": "2", "racks": [{"name": "r2", "hosts": [B]}]}]},
            ],
        }
    )
    topology = Topology.from_json(text)
    assert [level.name for level in topology.levels] == ["host", "rack", "row", "zone"]
    assert topology.groups("zone") == ((0, 1), (2, 3))
    assert Topology.from_json(topology.to_json()) == topology


def test_devices_are_those_of_the_text_or_those_given():
    text = json.dumps({"devices_per_worker": 2, "hosts": [A, B]})
    assert Topology.from_json(text).num_replicas == Topology.from_json(text, [2, 2]).num_replicas == 4
    assert Topology.from_json(json.dumps({"hosts": [A, B]}), 3).num_replicas == 6


def test_islands_of_the_text_are_devices_of_the_host():
    assert Topology.from_json(json.dumps(TWO_RACKS), [2, 2, 1, 1]).groups("island") == ((0, 1), (2, 3), (4,), (5,))


def test_other_devices_than_the_text_has_are_refused():
    with pytest.raises(ValueError, match=r"describes: devices_per_worker=2\. Received: 4\. Correct one"):
        Topology.from_json(json.dumps({"devices_per_worker": 2, "hosts": [A]}), 4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "TFDP_TOPOLOGY must be JSON, such as"),
        ("[]", "TFDP_TOPOLOGY must be a JSON object"),
        ({}, "must hold one list in each level, such as 'racks' and then 'hosts'"),
        ({"racks": []}, "must hold one list in each level"),
        ({"racks": [{"name": "r"}]}, "Received: none in 'racks'"),
        ({"racks": [{"name": "r", "hosts": [A]}], "hosts": [B]}, "Received: 'racks', 'hosts'"),
        ({"rack": [{"name": "r", "hosts": [A]}]}, "Received: 'rack'"),
        ({"islands": [{"name": "r", "hosts": [A]}]}, "Received: 'islands'"),
        ({"racks": [{"name": "r", "racks": [{"name": "s", "hosts": [A]}]}]}, "Received: 'racks' in 'racks'"),
        ({"racks": [{"name": "r", "hosts": [A]}, {"name": "s"}]}, "Received: None of 's'"),
        ({"racks": [{"name": "r", "hosts": [A]}, {"name": "s", "hosts": [B], "x": 1}]}, "Received: 'x' of 's'"),
        ({"racks": [{"hosts": [A]}]}, "Each of 'racks' must be an object with a 'name'"),
        ({"racks": [{"name": "r", "hosts": [A]}, 5]}, "Received: 5 in TFDP_TOPOLOGY"),
        ({"hosts": [{"workers": [0]}]}, "Each of 'hosts' must be an object with a 'name'"),
        ({"hosts": {"a": [0]}}, "must have nothing but a list of 'hosts' here"),
        ({"hosts": [{"name": "a"}]}, "no 'workers' in host 'a' of TFDP_TOPOLOGY"),
        ({"hosts": [{**A, "gpus": 4}]}, "an unknown key 'gpus' in host 'a'"),
        ({"hosts": [{"name": "a", "workers": []}]}, "must have one worker at least"),
        ({"hosts": [{"name": "a", "workers": "0"}]}, "'workers' of host 'a' must be a list of numbers"),
        ({"hosts": [{"name": "a", "workers": [True]}]}, "'workers' of host 'a' must be a list of numbers"),
        ({"hosts": [{**A, "islands": [0]}]}, "An island of host 'a' must be a list of numbers"),
        ({"hosts": [{**A, "islands": {}}]}, "'islands' of host 'a' must be a list of lists"),
        ({"hosts": [{**A, "islands": [[0, 1]]}]}, "must hold each of its devices 0 to 0 once"),
        ({"hosts": [A, {"name": "b", "workers": [2]}]}, "name the workers 0, 1, .. once each. Received: workers 0, 2"),
        ({"hosts": [A, {**B, "workers": [0]}]}, "Received: workers 0, 0"),
        ({"hosts": [A, {**B, "name": "a"}]}, "Names of hosts must differ. Received: 'a' twice"),
        ({"hosts": [A], "devices_per_worker": 0}, "'devices_per_worker' must be a number of at least 1"),
        ({"hosts": [A], "devices_per_worker": [0]}, "'devices_per_worker' must be a list of numbers of at least 1"),
        ({"hosts": [A], "devices_per_worker": [1, 1]}, "one for each of 1 workers"),
    ],
)
def test_what_is_no_description_is_refused_by_name(text, message):
    assert message in refusal(text)


LEAVES = st.none() | st.booleans() | st.integers(-1, 3) | st.sampled_from(["", "a", "b"]) | st.lists(st.integers(0, 2))
KEYS = st.sampled_from(["name", "workers", "islands", "hosts", "racks", "zones", "devices_per_worker"])
JSON = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4))


@fixed_examples
@given(st.dictionaries(KEYS, JSON, max_size=3))
def test_every_json_is_a_topology_or_refused(whole):
    try:
        topology = Topology.from_json(json.dumps(whole))
    except ValueError:
        return
    assert Topology.from_json(topology.to_json()) == topology
