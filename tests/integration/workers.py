"""Processes that tests start: alone or as workers of a cluster, each with a deadline, and how they ended."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

TESTS = Path(__file__).resolve().parent.parent

# What would make a process a member of a cluster, or give it other devices than a test expects.
_NOT_INHERITED = (
    *("TF_CONFIG", "SLURM_STEP_ID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "RANK", "WORLD_SIZE"),
    *("TFDP_TOPOLOGY", "TFDP_HOSTS", "TFDP_PORT_BASE"),
    *("TFDP_DEVICES_PER_WORKER", "TFDP_READY_FILE", "TFDP_START_TIMEOUT"),
)


class Ended(NamedTuple):
    """How a process ended.

    Attributes:
        status: its exit status, minus the number of the signal that ended it; None where it ran past its deadline.
        output: what it wrote to its standard output and error.
    """

    status: int | None
    output: str


class Process:
    """A Python process that runs the text of a program."""

    def __init__(self, program: str, arguments: Sequence[object], environment: dict[str, str]) -> None:
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 (closed by finish)
        inherited = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
        settings = {
            "PYTHONPATH": os.pathsep.join([str(TESTS.parent), str(TESTS)]),
            "KERAS_BACKEND": "tensorflow",
            "CUDA_VISIBLE_DEVICES": "",
        }
        self._process = subprocess.Popen(
            [sys.executable, "-u", "-c", program, *map(str, arguments)],
            env={**inherited, **settings, **environment},
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
        )

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def finish(self, seconds: float = 0.0) -> Ended:
        """Returns how the process ended; kills it after `seconds`."""
        try:
            status = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            status = None
        with self._output:
            self._output.seek(0)
            return Ended(status, self._output.read().decode(errors="replace"))


def start(program: str, *arguments: object, tf_config: str | None = None, **environment: str) -> Process:
    """Starts a Python process that runs `program`, the text of one."""
    cluster = {} if tf_config is None else {"TF_CONFIG": tf_config}
    return Process(program, arguments, {**cluster, **environment})


def finish(processes: Sequence[Process], *, deadline_seconds: float, grace_seconds: float = 30.0) -> list[Ended]:
    """Returns how the processes ended.

    Args:
        processes: those that belong together.
        deadline_seconds: how long they may run.
        grace_seconds: how long the others may run on when one has ended with an error.
    """
    deadline = time.monotonic() + deadline_seconds
    failed = False
    while time.monotonic() < deadline and not all(process.has_ended() for process in processes):
        if not failed and any(process.has_ended() and process._process.returncode for process in processes):
            failed, deadline = True, min(deadline, time.monotonic() + grace_seconds)
        time.sleep(0.05)
    return [process.finish() for process in processes]


def start_cluster(program: str, *arguments: object, num_workers: int = 2, **environment: str) -> list[Process]:
    """Starts the workers of a new cluster, which run `program`; returns them by rank."""
    addresses = free_addresses(num_workers)
    return [
        start(program, *arguments, tf_config=tf_config(addresses, rank), **environment) for rank in range(num_workers)
    ]


def tf_config(addresses: Sequence[str], rank: int) -> str:
    """Returns the TF_CONFIG of one worker."""
    return json.dumps({"cluster": {"worker": list(addresses)}, "task": {"type": "worker", "index": rank}})


def free_addresses(count: int) -> list[str]:
    """Returns addresses on this machine, with ports that the system chose."""
    with contextlib.ExitStack() as stack:
        # All are bound before any is let go, or the system could choose one twice.
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for bound in sockets:
            bound.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{bound.getsockname()[1]}" for bound in sockets]


@contextlib.contextmanager
def busy_address() -> Iterator[str]:
    """An address on this machine whose port is taken."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def report(processes: Sequence[Ended]) -> str:
    """Returns the statuses and the ends of the outputs of processes, for messages of failed tests."""
    return "\n".join(
        f"--- process {rank}, status {status}\n{output[-3000:]}" for rank, (status, output) in enumerate(processes)
    )
