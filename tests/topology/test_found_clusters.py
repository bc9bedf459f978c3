"""Which part of the environment decides on the cluster, and where its workers stand."""

import json
import subprocess
import sys

import pytest

from tfdp.topology import cluster_from_environment, find_cluster, topology_from_environment

TF_CONFIG = {"TF_CONFIG": json.dumps({"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}})}
SLURM = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "1",
    "SLURM_PROCID": "2",
    "SLURM_NTASKS": "4",
    "SLURM_STEP_NODELIST": "n[1-2]",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
}
MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "3",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "3",
}
PMI_OF_SRUN = {"PMI_RANK": "2", "PMI_SIZE": "4"}
TWO_HOSTS = {"hosts": [{"name": "x", "workers": [0, 1]}, {"name": "y", "workers": [2, 3]}]}


@pytest.mark.parametrize(
    ("environment", "source", "rank", "num_workers"),
    [
        (TF_CONFIG, "TF_CONFIG", 1, 2),
        (SLURM, "Slurm", 2, 4),
        (MPI, "MPI", 1, 3),
        ({**TF_CONFIG, **SLURM, **MPI}, "TF_CONFIG", 1, 2),
        ({**SLURM, **MPI}, "MPI", 1, 3),  # mpirun within an allocation
        ({**SLURM, **PMI_OF_SRUN}, "Slurm", 2, 4),  # srun --mpi=pmi2
        ({**SLURM, "TF_CONFIG": "  "}, "Slurm", 2, 4),
    ],
)
def test_tf_config_comes_first_then_mpirun_then_srun(environment, source, rank, num_workers):
    found = find_cluster(environment)
    assert (found.source, found.cluster.rank, found.cluster.num_workers) == (source, rank, num_workers)
    assert cluster_from_environment(environment) == found.cluster


@pytest.mark.parametrize("environment", [{}, {**SLURM, "TF_CONFIG": "{}"}, {**MPI, "TF_CONFIG": '{"cluster": {}}'}])
def test_nothing_is_no_cluster_and_an_empty_tf_config_says_so_on_purpose(environment):
    assert find_cluster(environment).cluster is None
    assert find_cluster(environment).source == ""


def test_tf_config_wins_over_a_contradiction_and_there_is_a_warning():
    (warning,) = find_cluster({**TF_CONFIG, **SLURM}).warnings
    assert warning == (
        "TF_CONFIG has 2 workers, and Slurm has started 4 processes. TF_CONFIG counts. Unset it to train with those of "
        "Slurm."
    )
    assert "MPI has started 3 processes" in find_cluster({**TF_CONFIG, **MPI}).warnings[0]


@pytest.mark.parametrize(
    "changes",
    [
        {"SLURM_NTASKS": "2"},
        {"SLURM_NTASKS": "1"},  # a launcher of one task a job, which sets TF_CONFIG itself
        {"SLURM_STEP_ID": None},
        {"SLURM_NTASKS": "many"},
    ],
)
def test_there_is_no_warning_where_nothing_contradicts(changes):
    slurm = {name: value for name, value in {**SLURM, **changes}.items() if value is not None}
    assert find_cluster({**TF_CONFIG, **slurm}).warnings == ()


# Where workers stand


def test_workers_of_slurm_stand_on_its_nodes():
    topology = topology_from_environment(SLURM, cluster_from_environment(SLURM), 2, resolve=None)
    assert topology.hosts == ("n1", "n2")
    assert topology.groups() == ((0, 1, 2, 3), (4, 5, 6, 7))


def test_tfdp_topology_overrides_addresses():
    environment = {**SLURM, "TFDP_TOPOLOGY": json.dumps(TWO_HOSTS)}

    def never(name):
        raise AssertionError(name)

    topology = topology_from_environment(environment, cluster_from_environment(environment), resolve=never)
    assert topology.hosts == ("x", "y")
    assert topology.groups() == ((0, 1), (2, 3))


def test_tfdp_topology_may_be_a_file(tmp_path):
    path = tmp_path / "topology.json"
    path.write_text(json.dumps(TWO_HOSTS))
    environment = {**SLURM, "TFDP_TOPOLOGY": str(path)}
    assert topology_from_environment(environment, cluster_from_environment(environment)).hosts == ("x", "y")
    path.write_text("{")
    with pytest.raises(ValueError, match=rf"TFDP_TOPOLOGY \({path}\) must be JSON"):
        topology_from_environment(environment, cluster_from_environment(environment))


def test_a_file_that_there_is_not_is_named():
    with pytest.raises(ValueError, match=r"Received: '/no/such/file' \(No such file or directory\)"):
        topology_from_environment({"TFDP_TOPOLOGY": "/no/such/file"}, None)


@pytest.mark.parametrize("environment", [TF_CONFIG, {}])
def test_a_topology_of_other_workers_is_refused(environment):
    cluster = cluster_from_environment(environment)
    last = 0 if cluster is None else 1
    with pytest.raises(ValueError, match=rf"workers, 0 to {last}\. Received: workers 0 to 3\. Correct or unset"):
        topology_from_environment({"TFDP_TOPOLOGY": json.dumps(TWO_HOSTS)}, cluster)


def test_ipv6_addresses_of_tf_config_name_hosts():
    roles = {"worker": ["[fe80::1]:1", "[fe80:0::1]:2", "[::1]:1", "HOST-A:1", "host-a:2"]}
    environment = {"TF_CONFIG": json.dumps({"cluster": roles, "task": {"type": "worker", "index": 0}})}
    topology = topology_from_environment(environment, cluster_from_environment(environment), resolve=None)
    assert topology.hosts == ("fe80::1", "::1", "HOST-A")
    assert topology.groups() == ((0, 1), (2,), (3, 4))


def test_no_framework_is_imported():
    program = (
        "import sys, tfdp, tfdp.topology; tfdp.Topology; "
        "print(sorted({'tensorflow', 'keras', 'numpy', 'pynvml'} & set(sys.modules)))"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout == "[]\n"
