"""Workers that srun, mpirun or a TF_CONFIG with IPv6 has started find each other, and know where they stand."""

import contextlib
import json
import socket

import pytest
from integration import workers

PROGRAM = """
import os
import tfdp
from tfdp import topology

cluster = topology.cluster_from_environment(os.environ)
where = topology.topology_from_environment(os.environ, cluster)
strategy = tfdp.MultiWorkerMirroredStrategy(start_timeout_seconds=60)
total = float(strategy.reduce("SUM", strategy.run(lambda: float(strategy.worker + 1))))
print(f"<found>{strategy.num_replicas_in_sync} {total} {where.groups()}</found>")
"""


def free_base(host="127.0.0.1", family=socket.AF_INET):
    """Returns a port that is free on `host`, as is the next one."""
    for base in range(23400, 32000, 2):
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            for port in (base, base + 1):
                stack.enter_context(socket.socket(family)).bind((host, port))
            return base
    raise AssertionError("no two ports beside each other are free")


def check(processes, found):
    ended = workers.finish(processes, deadline_seconds=120.0)
    for process in ended:
        assert process.status == 0, workers.report(ended)
        assert f"<found>{found}</found>" in process.output, workers.report(ended)


def test_tasks_of_srun_train_together_without_tf_config():
    port = str(free_base())
    slurm = {"SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "localhost", "SLURM_STEP_TASKS_PER_NODE": "2"}
    processes = [
        workers.start(PROGRAM, **slurm, SLURM_PROCID=str(rank), SLURM_NTASKS="2", TFDP_PORT_BASE=port)
        for rank in range(2)
    ]
    check(processes, "2 3.0 ((0, 1),)")


def test_processes_of_mpirun_train_together_and_may_stand_for_hosts():
    two_hosts = json.dumps({"hosts": [{"name": "a", "workers": [0]}, {"name": "b", "workers": [1]}]})
    names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
    port = str(free_base())
    processes = [
        workers.start(
            PROGRAM,
            **{f"OMPI_COMM_WORLD_{name}": str(value) for name, value in zip(names, (rank, 2, rank, 2), strict=True)},
            TFDP_PORT_BASE=port,
            TFDP_TOPOLOGY=two_hosts,
        )
        for rank in range(2)
    ]
    check(processes, "2 3.0 ((0,), (1,))")


def test_workers_meet_over_ipv6():
    try:
        port = free_base("::1", socket.AF_INET6)
    except (OSError, AssertionError):
        pytest.skip("this machine has no IPv6")
    addresses = [f"[::1]:{port}", f"[::1]:{port + 1}"]
    processes = [workers.start(PROGRAM, tf_config=workers.tf_config(addresses, rank)) for rank in range(2)]
    check(processes, "2 3.0 ((0, 1),)")
