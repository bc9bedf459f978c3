"""The cluster that a launch makes on this machine: its addresses, and what each worker is told of it."""

import contextlib
import json
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from tfdp.cli.devices import gpus_of_worker
from tfdp.cli.errors import LaunchError

HOST = "127.0.0.1"


def free_ports(num_ports: int) -> tuple[int, ...]:
    """Returns distinct ports that nobody listens on, chosen by the system.

    They are free when this returns. Another program may take one before its worker does, which is rare, and the
    worker then fails with "address in use".
    """
    with contextlib.ExitStack() as stack:
        # All are bound before any is let go, or the system could choose one twice.
        sockets = [stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) for _ in range(num_ports)]
        for bound in sockets:
            bound.bind((HOST, 0))
        return tuple(bound.getsockname()[1] for bound in sockets)


def tf_config(ports: Sequence[int], rank: int) -> str:
    """Returns TF_CONFIG of one worker; worker 0 is the chief.

    Example:
        >>> tf_config([5001, 5002], rank=1)
        '{"cluster": {"worker": ["127.0.0.1:5001", "127.0.0.1:5002"]}, "task": {"type": "worker", "index": 1}}'
    """
    addresses = [f"{HOST}:{port}" for port in ports]
    return json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": rank}})


def ready_file(log_dir: Path, rank: int) -> Path:
    """Returns the file that a worker's strategy makes once connected; with ".waiting" added, when it begins to."""
    return log_dir / f".ready.{rank}"


def worker_environment(
    environment: Mapping[str, str],
    *,
    rank: int,
    ports: Sequence[int],
    gpus: Sequence[str] = (),
    devices_per_worker: int | None = None,
    settings: Mapping[str, str],
    start_timeout_seconds: float,
    log_dir: Path,
) -> dict[str, str]:
    """Returns the whole environment of one worker.

    Args:
        environment: that of the launcher. What the user set in it stays, except for the worker's place in the cluster.
        rank: the worker's place, 0 for the chief.
        ports: the port of every worker.
        gpus: the GPUs that the workers share out among themselves; none on machines without.
        devices_per_worker: devices of each worker, or None where the program decides.
        settings: what makes workers fast, where the user did not set it.
        start_timeout_seconds: how long workers wait for each other.
        log_dir: absolute path of the folder of logs.
    """
    num_workers = str(len(ports))
    worker = {"KERAS_BACKEND": "tensorflow", "PYTHONUNBUFFERED": "1", **settings, **environment}
    worker |= {
        "TF_CONFIG": tf_config(ports, rank),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": num_workers,
        "LOCAL_WORLD_SIZE": num_workers,
        "TFDP_START_TIMEOUT": _number(start_timeout_seconds),
        "TFDP_READY_FILE": str(ready_file(log_dir, rank)),
    }
    if devices_per_worker is not None:
        worker["TFDP_DEVICES_PER_WORKER"] = str(devices_per_worker)
        if gpus:
            worker["CUDA_VISIBLE_DEVICES"] = ",".join(gpus_of_worker(gpus, rank, devices_per_worker))
    return worker


def check_not_nested(environment: Mapping[str, str]) -> None:
    """Raises a LaunchError where `environment` already makes this process a member of a cluster."""
    try:
        config = json.loads(environment.get("TF_CONFIG") or "{}")
    except json.JSONDecodeError:
        return  # no cluster anyone can join, and the workers get a TF_CONFIG of their own
    cluster = config.get("cluster") if isinstance(config, dict) else None
    if isinstance(cluster, dict) and any(cluster.values()):
        raise LaunchError(
            "`tfdp run` makes a cluster of workers on this machine and must not run inside another cluster. Received: "
            f"TF_CONFIG with the cluster {json.dumps(cluster)}. To take part in that one, run the program without "
            "`tfdp run`, as in `python train.py`; to start a new one, `unset TF_CONFIG` first."
        )


def _number(seconds: float) -> str:
    return str(int(seconds)) if float(seconds).is_integer() else str(seconds)
