"""Tasks of srun as workers: who is where, and which processes are no tasks."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdp.topology.slurm import cluster_of_slurm, plane_distribution, step_of_slurm, tasks_per_node

fixed_examples = settings(derandomize=True, database=None, deadline=None)


def task(rank, nodes="node[01-03]", per_node="2(x2),1", num_tasks=5, **changes):
    """Returns the environment of one task of a step, as srun makes it."""
    environment = {
        "SLURM_JOB_ID": "1234",
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": str(rank),
        "SLURM_NTASKS": str(num_tasks),
        "SLURM_STEP_NUM_TASKS": str(num_tasks),
        "SLURM_JOB_NODELIST": "node[01-09]",
        "SLURM_STEP_NODELIST": nodes,
        "SLURM_TASKS_PER_NODE": per_node,
        "SLURM_STEP_TASKS_PER_NODE": per_node,
        **changes,
    }
    return {name: value for name, value in environment.items() if value is not None}


def refusal(environment):
    with pytest.raises(ValueError) as raised:
        cluster_of_slurm(environment)
    return str(raised.value)


def test_every_task_sees_the_same_workers_and_its_own_rank():
    clusters = [cluster_of_slurm(task(rank)) for rank in range(5)]
    base = 10000 + 64 * (1234 % 352)
    assert {cluster.addresses for cluster in clusters} == {
        (f"node01:{base}", f"node01:{base + 1}", f"node02:{base}", f"node02:{base + 1}", f"node03:{base}")
    }
    assert [cluster.rank for cluster in clusters] == list(range(5))
    assert [cluster.is_chief for cluster in clusters] == [True, False, False, False, False]


def test_another_step_of_the_job_has_other_ports():
    first, second = cluster_of_slurm(task(0)), cluster_of_slurm(task(0, SLURM_STEP_ID="1"))
    assert not set(first.addresses) & set(second.addresses)


def test_a_chosen_port_is_that_of_the_first_worker_of_each_node():
    cluster = cluster_of_slurm(task(0, "a,b", "2,1", 3, TFDP_PORT_BASE="5000"))
    assert cluster.addresses == ("a:5000", "a:5001", "b:5000")


@pytest.mark.parametrize(
    "changes",
    [
        {"SLURM_STEP_ID": None},  # a script of sbatch, which has SLURM_PROCID=0
        {"SLURM_PROCID": None},
        {"SLURM_STEP_ID": None, "SLURM_PROCID": None},  # a shell of salloc
        {"SLURM_STEP_ID": str(2**32 - 6)},  # the same, where salloc makes a step for it
        {"SLURM_STEP_ID": str(2**32 - 5)},
        {"SLURM_STEP_NUM_TASKS": "1"},  # srun --pty bash, in a job of several tasks
        {"SLURM_STEP_NUM_TASKS": None, "SLURM_NTASKS": "1"},
        {"SLURM_STEP_NUM_TASKS": None, "SLURM_NTASKS": None},
    ],
)
def test_a_process_that_is_no_task_among_several_is_alone(changes):
    assert cluster_of_slurm(task(0, **changes)) is None


def test_an_environment_without_slurm_is_no_cluster():
    assert cluster_of_slurm({}) is None


def test_the_nodes_of_the_job_count_where_the_step_names_none():
    environment = task(
        1, None, None, 2, SLURM_JOB_NODELIST="n[8-9]", SLURM_TASKS_PER_NODE="1(x2)", SLURM_STEP_TASKS_PER_NODE=None
    )
    assert step_of_slurm(environment).hosts == ("n8", "n9")


@pytest.mark.parametrize(
    ("distribution", "hosts"),
    [
        (None, "a a a b c c"),
        ("block", "a a a b c c"),
        ("block:cyclic", "a a a b c c"),
        ("cyclic", "a b c a c a"),
        ("cyclic:block", "a b c a c a"),
        ("plane=2", "a a b c c a"),
    ],
)
def test_tasks_are_where_the_distribution_has_put_them(distribution, hosts):
    step = step_of_slurm(task(0, "a,b,c", "3,1,2", 6, SLURM_DISTRIBUTION=distribution))
    assert step.hosts == tuple(hosts.split())


def test_the_size_of_planes_may_stand_apart():
    environment = task(0, "a,b", "2(x2)", 4, SLURM_DISTRIBUTION="plane", SLURM_DIST_PLANESIZE="2")
    assert step_of_slurm(environment).hosts == ("a", "a", "b", "b")


@fixed_examples
@given(st.lists(st.integers(1, 6), min_size=1, max_size=6), st.integers(1, 7))
def test_every_distribution_gives_each_node_its_number_of_tasks(counts, plane):
    nodes = plane_distribution(counts, plane)
    assert [nodes.count(node) for node in range(len(counts))] == counts
    assert plane_distribution(counts, max(counts)) == sorted(nodes)


@pytest.mark.parametrize(
    ("text", "counts"), [("2(x3),1", [2, 2, 2, 1]), ("4", [4]), ("1(x2)", [1, 1]), ("3, 2(x2)", [3, 2, 2])]
)
def test_numbers_of_tasks_are_written_out(text, counts):
    assert tasks_per_node(text) == counts


@pytest.mark.parametrize("text", ["", "2(x)", "0", "2(x0)", "x", "2,", "2(x3", "-1", "1(x999999999)"])
def test_numbers_of_tasks_that_are_none_are_named(text):
    with pytest.raises(ValueError, match=r"SLURM_STEP_TASKS_PER_NODE must hold the tasks of each node") as raised:
        tasks_per_node(text, name="SLURM_STEP_TASKS_PER_NODE")
    assert f"Received: {text!r}" in str(raised.value)


@pytest.mark.parametrize(
    ("changes", "received"),
    [
        ({"num_tasks": 6}, "5 tasks on node[01-03], and 6 tasks in all"),
        ({"nodes": "node[01-02]"}, "2 nodes, and numbers of tasks for 3"),
        ({"rank": 5}, "rank 5 of 5 tasks"),
        ({"SLURM_NODEID": "2"}, "SLURM_NODEID=2 of rank 0, which by the distribution of tasks should be 0"),
        ({"rank": 3, "SLURM_NODEID": "1", "SLURM_LOCALID": "0"}, "SLURM_LOCALID=0 of rank 3, which"),
        (
            {"SLURM_STEP_TASKS_PER_NODE": None, "SLURM_TASKS_PER_NODE": None},
            "no list of nodes, or no numbers of their tasks",
        ),
    ],
)
def test_contradictions_are_shown_with_all_that_slurm_says(changes, received):
    message = refusal(task(**{"rank": 0, **changes}))
    assert "The variables of Slurm must describe one step of tasks" in message
    assert f"Received: {received}" in message
    assert "SLURM_STEP_NODELIST=" in message
    assert "Start workers with `srun`, or set TF_CONFIG." in message


def test_a_distribution_that_cannot_be_followed_is_refused_with_a_remedy():
    message = refusal(task(0, SLURM_DISTRIBUTION="arbitrary"))
    assert "Received: SLURM_DISTRIBUTION='arbitrary'. Run srun with --distribution=block, or set TF_CONFIG." in message


def test_a_number_that_is_none_is_named():
    assert "SLURM_PROCID must be an integer of at least 0" in refusal(task("first"))


def test_a_broken_list_of_nodes_is_shown():
    assert "Received: 'node[01-'" in refusal(task(0, "node[01-"))
