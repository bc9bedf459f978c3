"""What `tfdp topology` draws, prints and refuses."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from tfdp.cli import topology as command
from tfdp.cli.main import app
from tfdp.topology import Topology


@pytest.fixture(autouse=True)
def nothing_around(monkeypatch):
    """Takes the cluster and the GPUs of the machine that runs the tests out of the way."""
    for name in ("TF_CONFIG", "TFDP_TOPOLOGY", "TFDP_HOSTS", "TFDP_DEVICES_PER_WORKER", "SLURM_STEP_ID", "PMI_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("OMPI_COMM_WORLD_RANK", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def tfdp_topology(*arguments, **environment):
    """Runs the command in this process, on a screen that is no terminal."""
    environment = {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb", **environment}
    return CliRunner(env=environment).invoke(app, ["topology", *arguments])


def drawn(*arguments, **environment):
    result = tfdp_topology(*arguments, **environment)
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


def refused(*arguments, **environment):
    result = tfdp_topology(*arguments, **environment)
    assert result.exit_code == 2
    assert result.stdout == ""
    return result.stderr


def test_hosts_with_numbers_of_workers_are_drawn():
    assert drawn("--hosts", "a:2,b", "--devices", "2") == [
        "6 replicas of 3 workers, on 2 hosts",
        "├── host a",
        "│   ├── worker 0: replicas 0-1",
        "│   └── worker 1: replicas 2-3",
        "└── host b",
        "    └── worker 2: replicas 4-5",
    ]


@pytest.mark.parametrize(
    ("options", "hosts"),
    [
        ([], ["n01", "n02", "n03"]),
        (["--tasks-per-node", "2"], ["n01", "n01", "n02", "n02", "n03", "n03"]),
        (["--tasks-per-node", "2(x2),1"], ["n01", "n01", "n02", "n02", "n03"]),
    ],
)
def test_nodes_of_slurm_are_drawn(options, hosts):
    assert "\n".join(drawn("--slurm", "n[01-03]", *options)) == str(Topology.from_hosts(hosts))


def test_json_is_what_the_file_takes(tmp_path):
    result = tfdp_topology("--hosts", "a:3,b:1", "--devices", "2", "--json")
    path = tmp_path / "topology.json"
    path.write_text(result.stdout)
    assert json.loads(result.stdout)["devices_per_worker"] == 2
    assert drawn("--file", str(path)) == drawn("--hosts", "a:3,b:1", "--devices", "2")
    assert drawn(TFDP_TOPOLOGY=str(path), TF_CONFIG=tf_config("a:1", "a:2", "a:3", "b:1")) == drawn("--file", str(path))


def tf_config(*addresses):
    return json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": 0}})


def test_without_options_the_environment_tells():
    result = tfdp_topology(TF_CONFIG=tf_config("127.0.0.2:1", "127.0.0.3:1"), TFDP_DEVICES_PER_WORKER="2")
    assert result.stdout.startswith("4 replicas of 2 workers, on 2 hosts\n├── host 127.0.0.2\n")
    assert result.stderr == "tfdp topology: from TF_CONFIG\n"


def test_without_a_cluster_there_is_one_worker():
    result = tfdp_topology()
    assert result.stdout.splitlines() == [
        "1 replica of 1 worker, on 1 host",
        "└── host localhost",
        "    └── worker 0: replica 0",
    ]
    assert result.stderr == "tfdp topology: no cluster in the environment: one worker\n"


def test_a_contradiction_of_the_environment_is_told():
    slurm = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_NTASKS": "4"}
    result = tfdp_topology(TF_CONFIG=tf_config("a:1", "a:2"), **slurm)
    assert "2 workers" in result.stdout
    assert "tfdp topology: TF_CONFIG has 2 workers, and Slurm has started 4 processes." in result.stderr


def test_gpus_of_this_host_are_drawn_in_their_islands(monkeypatch):
    monkeypatch.setattr(command, "gpu_islands", lambda gpus: ((0, 1), (2,)))
    lines = drawn(CUDA_VISIBLE_DEVICES="0,1,2")
    assert lines[0] == "3 replicas of 1 worker, on 1 host"
    assert [line for line in lines if "island" in line] == [
        "    ├── island localhost/0",
        "    └── island localhost/1",
    ]


def test_gpus_whose_links_are_not_known_are_drawn_without(monkeypatch):
    monkeypatch.setattr(command, "gpu_islands", lambda gpus: None)
    assert len(drawn(CUDA_VISIBLE_DEVICES="0,1")) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--hosts", "a", "--slurm", "b"], "Give one of --hosts, --slurm and --file, or none"),
        (["--tasks-per-node", "2"], "--tasks-per-node goes with --slurm"),
        (["--slurm", "n[1-3]", "--tasks-per-node", "2,1"], "one for each of 3 nodes. Received: numbers for 2"),
        (["--slurm", "n[1-"], "Received: 'n[1-'"),
        (["--slurm", "n1", "--tasks-per-node", "x"], "--tasks-per-node must hold the tasks of each node"),
        (["--hosts", "a:x"], "--hosts must list hosts with their numbers of workers"),
        (["--file", "no-such-file"], "Received: 'no-such-file' (No such file or directory)"),
    ],
)
def test_what_cannot_be_drawn_ends_with_status_2_and_the_reason(arguments, message):
    output = refused(*arguments)
    assert output.startswith("tfdp topology: ")
    assert message in output


def test_a_broken_environment_ends_with_status_2():
    assert "TF_CONFIG must be JSON" in refused(TF_CONFIG="no json")


def test_tensorflow_is_not_imported():
    program = (
        "import sys; from typer.testing import CliRunner; from tfdp.cli.main import app; "
        "print(CliRunner().invoke(app, ['topology', '--hosts', 'a:2']).exit_code, 'tensorflow' in sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout == "0 False\n"
