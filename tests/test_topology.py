"""TF_CONFIG as clusters really write it: who trains, in which order, and what is refused."""

import json
from collections import OrderedDict

import pytest

from tfdp.topology import Cluster, check_address, cluster_from_environment, make_cluster


def environment(cluster, task_type=None, index=None, **extra):
    """Returns an environment whose TF_CONFIG describes `cluster` and the task of this process."""
    task = {} if task_type is None else {"task": {"type": task_type, "index": index}}
    return {"TF_CONFIG": json.dumps({"cluster": cluster, **task, **extra})}


def read(cluster, task_type=None, index=None, **extra) -> Cluster:
    found = cluster_from_environment(environment(cluster, task_type, index, **extra))
    assert found is not None
    return found


# Ranks and roles

CHIEF_AND_TWO_WORKERS = {"chief": ["c:1"], "worker": ["a:1", "b:1"], "ps": []}


@pytest.mark.parametrize(
    ("task_type", "index", "rank"), [("chief", 0, 0), ("worker", 0, 1), ("worker", "1", 2), ("worker", 1, 2)]
)
def test_ranks_count_the_chief_first_then_the_workers(task_type, index, rank):
    cluster = read(CHIEF_AND_TWO_WORKERS, task_type, index, environment="cloud", job={})
    assert (cluster.rank, cluster.num_workers) == (rank, 3)
    assert cluster.addresses == ("c:1", "a:1", "b:1")
    assert cluster.address == cluster.addresses[rank]
    assert (cluster.task_type, cluster.task_id) == (task_type, int(index))


@pytest.mark.parametrize("chief", [{}, {"chief": ["c:1"]}, {"master": ["c:1"]}])
def test_exactly_one_of_the_workers_is_chief(chief):
    roles = {**chief, "worker": ["a:1", "b:1"]}
    tasks = [(role, index) for role, addresses in roles.items() for index in range(len(addresses))]
    clusters = [read(roles, *task) for task in tasks]
    assert [cluster.is_chief for cluster in clusters] == [cluster.rank == 0 for cluster in clusters]
    assert sorted(cluster.rank for cluster in clusters) == list(range(len(tasks)))
    assert len({cluster.addresses for cluster in clusters}) == 1


def test_worker_0_is_chief_where_there_is_none():
    assert read({"worker": ["a:1", "b:1"]}, "worker", 0).is_chief
    assert not read({"worker": ["a:1", "b:1"]}, "worker", 1).is_chief


def test_a_chief_alone_is_a_cluster_of_one():
    cluster = read({"chief": ["c:1"]}, "chief", 0)
    assert (cluster.rank, cluster.num_workers, cluster.is_chief) == (0, 1, True)


def test_the_old_role_master_is_the_chief():
    roles = {"master": ["m:1"], "worker": ["a:1"]}
    master, worker = read(roles, "master", 0), read(roles, "worker", 0)
    assert (master.task_type, master.rank, master.is_chief) == ("chief", 0, True)
    assert (worker.rank, worker.is_chief) == (1, False)
    assert master.jobs == worker.jobs == {"chief": ("m:1",), "worker": ("a:1",)}


def test_the_order_of_the_roles_in_the_text_does_not_matter():
    roles = OrderedDict([("worker", ["a:1", "b:1"]), ("chief", ["c:1"])])
    assert read(roles, "worker", 0).addresses == ("c:1", "a:1", "b:1")


def test_empty_lists_of_tasks_are_ignored():
    cluster = read({"chief": [], "master": [], "ps": [], "evaluator": None, "worker": ["a:1"]}, "worker", 0)
    assert cluster.jobs == {"worker": ("a:1",)}
    assert cluster.is_chief


@pytest.mark.parametrize(
    "extra",
    [
        {"environment": "cloud"},
        {"job": {"region": "somewhere"}, "cloud": "yes"},
        {"rpc_layer": "grpc"},
        {"sparseCluster": {"worker": {"1": "b:1"}}},
    ],
)
def test_keys_that_services_add_are_ignored(extra):
    assert read({"worker": ["a:1", "b:1"]}, "worker", 1, **extra).rank == 1


def test_an_evaluator_beside_the_workers_is_not_counted():
    cluster = read({"chief": ["c:1"], "worker": ["a:1"], "evaluator": ["e:1"]}, "worker", 0)
    assert (cluster.rank, cluster.num_workers) == (1, 2)
    assert "evaluator" not in cluster.jobs


def test_names_for_messages_say_role_index_and_address():
    cluster = read(CHIEF_AND_TWO_WORKERS, "chief", 0)
    assert [cluster.name(rank) for rank in range(3)] == ["chief 0 (c:1)", "worker 0 (a:1)", "worker 1 (b:1)"]


def test_tasks_given_by_index_are_ordered_as_numbers():
    tasks = {str(index): f"w{index}:1" for index in reversed(range(12))}
    cluster = make_cluster({"worker": tasks}, "worker", 10, source="a test")
    assert cluster.addresses == tuple(f"w{index}:1" for index in range(12))
    assert cluster.address == "w10:1"


def test_tasks_may_be_a_dict_from_index_to_address():
    cluster = make_cluster({"worker": {1: "b:1", 0: "a:1"}}, "worker", 1, source="a test")
    assert (cluster.addresses, cluster.address) == (("a:1", "b:1"), "b:1")


# No cluster


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "  \n",
        "{}",
        '{"cluster": {}}',
        '{"cluster": null}',
        '{"cluster": {"worker": []}}',
        '{"cluster": {"worker": [], "ps": null}, "task": {"type": "worker", "index": 0}}',
        '{"task": {"type": "worker", "index": 0}}',
        '{"environment": "cloud"}',
    ],
)
def test_a_tf_config_without_workers_is_no_cluster(text):
    assert cluster_from_environment({} if text is None else {"TF_CONFIG": text}) is None


# What is refused, and what the message says


def refusal(environment):
    with pytest.raises(ValueError) as raised:
        cluster_from_environment(environment)
    return str(raised.value)


@pytest.mark.parametrize("text", ["no json", '{"cluster":', "{'cluster': {}}", '{"a": 1} {"b": 2}'])
def test_broken_json_is_shown_with_the_name_of_the_variable(text):
    message = refusal({"TF_CONFIG": text})
    assert "TF_CONFIG must be JSON" in message
    assert repr(text) in message


@pytest.mark.parametrize("text", ["[1]", "3", '"worker"', "null"])
def test_json_that_is_no_object_is_refused(text):
    message = refusal({"TF_CONFIG": text})
    assert "TF_CONFIG must be a JSON object with 'cluster' and 'task'" in message
    assert text in message


@pytest.mark.parametrize("config", [{"cluster": ["a:1"]}, {"cluster": {"worker": ["a:1"]}, "task": "worker"}])
def test_cluster_and_task_must_be_objects(config):
    assert "'cluster' and 'task' must be JSON objects" in refusal({"TF_CONFIG": json.dumps(config)})


@pytest.mark.parametrize(("index", "num_tasks"), [(2, 2), ("2", 2), (7, 3)])
def test_an_index_out_of_range_is_refused_with_both_numbers(index, num_tasks):
    message = refusal(environment({"worker": [f"w{i}:1" for i in range(num_tasks)]}, "worker", index))
    assert f"below the number of tasks of type 'worker', {num_tasks}" in message
    assert f"Received: index {index}" in message


@pytest.mark.parametrize("index", [None, "first", "", [0], {}, 0.5, True, -1, "-1"])
def test_an_index_that_is_no_integer_is_refused(index):
    message = refusal(environment({"worker": ["a:1", "b:1"]}, "worker", index))
    assert "The task's index must be an integer of at least 0" in message
    assert f"Received: {index!r}" in message


@pytest.mark.parametrize("task", [{}, {"task": {}}, {"task": None}, {"task": {"index": 0}}])
def test_a_cluster_without_a_task_is_refused(task):
    message = refusal({"TF_CONFIG": json.dumps({"cluster": {"worker": ["a:1"]}, **task})})
    assert "The task's 'type' and 'index' must say which worker this process is" in message


def test_an_evaluator_is_told_how_to_evaluate():
    roles = {"worker": ["a:1"], "evaluator": ["e:1"]}
    message = refusal(environment(roles, "evaluator", 0))
    assert "An evaluator takes no part in the training" in message
    assert "unset TF_CONFIG" in message


def test_an_evaluator_outside_the_cluster_is_told_the_same():
    assert "An evaluator takes no part" in refusal(environment({"worker": ["a:1"]}, "evaluator", 0))


@pytest.mark.parametrize(("task_type", "index"), [("ps", 0), ("worker", 0)])
def test_parameter_servers_are_refused_on_every_task(task_type, index):
    message = refusal(environment({"worker": ["a:1"], "ps": ["p:1"]}, task_type, index))
    assert "without parameter servers" in message
    assert "ParameterServerStrategy" in message


def test_a_parameter_server_outside_the_cluster_is_refused():
    assert "without parameter servers" in refusal(environment({"worker": ["a:1"], "ps": []}, "ps", 0))


def test_an_unknown_role_is_named():
    message = refusal(environment({"worker": ["a:1"], "trainer": ["t:1"]}, "worker", 0))
    assert "The roles of a cluster must be 'chief' and 'worker'. Received: 'trainer'" in message


@pytest.mark.parametrize("task_type", ["chief", "Worker", "master", 3])
def test_a_task_of_a_role_that_the_cluster_lacks_is_refused(task_type):
    message = refusal(environment({"worker": ["a:1"]}, task_type, 0))
    assert "The task's type must be one of the cluster's roles (worker)" in message


@pytest.mark.parametrize("roles", [{"chief": ["c:1", "d:1"]}, {"chief": ["c:1"], "master": ["m:1"]}])
def test_two_chiefs_are_refused(roles):
    assert "A cluster has one chief at most. Received: 2" in refusal(environment(roles, "chief", 0))


def test_sparse_clusters_are_refused_by_name():
    text = json.dumps({"sparseCluster": {"worker": {"1": "b:1"}}, "task": {"type": "worker", "index": 1}})
    message = refusal({"TF_CONFIG": text})
    assert "'sparseCluster' names only some" in message
    assert text in message


@pytest.mark.parametrize("tasks", ["a:1", [1], [None], [["a:1"]], 5, True])
def test_a_role_must_be_a_list_of_addresses(tasks):
    message = refusal(environment({"worker": tasks}, "worker", 0))
    assert "'worker' must be a list of 'host:port'" in message
    assert repr(tasks) in message


@pytest.mark.parametrize(
    "roles",
    [{"worker": ["a:1", "b:1", "a:1"]}, {"chief": ["a:1"], "worker": ["a:1"]}, {"master": ["a:1"], "worker": ["a:1"]}],
)
def test_an_address_given_twice_is_named(roles):
    role = next(iter(roles))
    message = refusal(environment(roles, role, 0))
    assert "Every worker needs an address of its own. Received: 'a:1' twice" in message


def test_one_host_may_hold_several_workers():
    assert read({"worker": ["a:1", "a:2"]}, "worker", 1).num_workers == 2


# Addresses


@pytest.mark.parametrize(
    "address",
    ["a:1", "127.0.0.1:65535", "[::1]:2222", "[fe80::1%eth0]:80", "w-0.w.ns.svc.cluster.local:2222", "HOST-A:2222"],
)
def test_an_address_passes_unchanged(address):
    check_address(address, "a test")
    assert read({"worker": [address]}, "worker", 0).address == address


@pytest.mark.parametrize(
    "address",
    [
        "",
        "host",
        "host:",
        ":2222",
        "host:0",
        "host:65536",
        "host:-1",
        "host:http",
        "host:2222/",
        "fe80::1",
        "::1:2222",
        "[::1]",
        "[::1]:",
        "grpc://host:2222",
    ],
)
def test_a_wrong_address_is_named(address):
    message = refusal(environment({"chief": ["c:1"], "worker": [address]}, "chief", 0))
    assert "A worker's address must be 'host:port' ('[host]:port' for IPv6), with a port from 1 to 65535" in message
    assert f"Received: {address!r}" in message
