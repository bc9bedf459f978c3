"""Who takes part in a training: the workers of a cluster, their order and their chief."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

TRAINING_ROLES = ("chief", "worker")


@dataclass(frozen=True)
class Cluster:
    """The workers that train together, and which of them this process is.

    Attributes:
        addresses: "host:port" of every worker, in the order of their ranks: the chief first, then workers 0, 1, ..
        jobs: the same addresses by role ("chief", "worker"), as TensorFlow's ClusterSpec takes them.
        task_type: the role of this process.
        task_id: its index within that role.
    """

    addresses: tuple[str, ...]
    jobs: Mapping[str, tuple[str, ...]]
    task_type: str
    task_id: int

    @property
    def num_workers(self) -> int:
        """The number of processes that train together."""
        return len(self.addresses)

    @property
    def rank(self) -> int:
        """The position of this process among the workers; 0 is the chief."""
        return self.task_id + (len(self.jobs.get("chief", ())) if self.task_type == "worker" else 0)

    @property
    def is_chief(self) -> bool:
        """Whether this process is the one that saves and reports: the task "chief", or worker 0 where there is none."""
        return self.rank == 0

    @property
    def address(self) -> str:
        """The "host:port" of this process."""
        return self.addresses[self.rank]

    def name(self, rank: int) -> str:
        """Returns the name of a worker for messages, such as "worker 1 (10.0.0.2:2222)"."""
        num_chiefs = len(self.jobs.get("chief", ()))
        role, index = ("chief", rank) if rank < num_chiefs else ("worker", rank - num_chiefs)
        return f"{role} {index} ({self.addresses[rank]})"


def make_cluster(cluster: Mapping[str, Any], task_type: str | None, task_id: Any, *, source: str) -> Cluster:
    """Returns the checked cluster of those who train.

    Args:
        cluster: addresses ("host:port") by role; a list, or a dict from index to address as ClusterSpec may give it.
        task_type: the role of this process.
        task_id: its index in that role, an integer or its text.
        source: what the values were read from, for error messages.

    Raises:
        ValueError: there is no such task, an address has no port or comes twice, or a role does not train.
    """
    jobs: dict[str, tuple[str, ...]] = {}
    for role, tasks in cluster.items():
        if not tasks:
            continue
        if isinstance(tasks, Mapping):
            tasks = [tasks[index] for index in sorted(tasks, key=int)]
        if not isinstance(tasks, list | tuple) or not all(isinstance(address, str) for address in tasks):
            raise ValueError(f"The cluster's {role!r} must be a list of 'host:port'. Received: {tasks!r} in {source}.")
        name = "chief" if role == "master" else role
        jobs[name] = jobs.get(name, ()) + tuple(tasks)
    task_type = "chief" if task_type == "master" else task_type
    _check_roles(jobs, task_type, source)
    for role in TRAINING_ROLES:
        for address in jobs.get(role, ()):
            check_address(address, source)
    index = _task_index(task_type, task_id, len(jobs[task_type]), source)  # type: ignore[index,arg-type]
    addresses = jobs.get("chief", ()) + jobs.get("worker", ())
    duplicates = sorted(address for address, count in Counter(addresses).items() if count > 1)
    if duplicates:
        raise ValueError(f"Every worker needs an address of its own. Received: {duplicates[0]!r} twice in {source}.")
    training = {role: jobs[role] for role in TRAINING_ROLES if role in jobs}
    return Cluster(addresses=addresses, jobs=training, task_type=task_type, task_id=index)  # type: ignore[arg-type]


def check_address(address: str, source: str) -> None:
    """Raises a ValueError unless `address` is "host:port", with an IPv6 host in brackets."""
    host, _, port = address.rpartition(":")
    bare_ipv6 = ":" in host and not (host.startswith("[") and host.endswith("]"))
    if not host or bare_ipv6 or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(
            "A worker's address must be 'host:port' ('[host]:port' for IPv6), with a port from 1 to 65535. "
            f"Received: {address!r} in {source}."
        )


def _check_roles(jobs: Mapping[str, tuple[str, ...]], task_type: str | None, source: str) -> None:
    if task_type == "evaluator":
        raise ValueError(
            "An evaluator takes no part in the training of tfdp.MultiWorkerMirroredStrategy. Evaluate without a "
            f"cluster: unset TF_CONFIG in that process, and load what the chief saved. Received: {source}."
        )
    if task_type == "ps" or "ps" in jobs:
        raise ValueError(
            "tfdp trains synchronously, without parameter servers. Take the tasks 'ps' out of the cluster, or use "
            f"tf.distribute.ParameterServerStrategy. Received: {source}."
        )
    unknown = sorted(set(jobs) - {*TRAINING_ROLES, "evaluator"})
    if unknown:
        raise ValueError(f"The roles of a cluster must be 'chief' and 'worker'. Received: {unknown[0]!r} in {source}.")
    if task_type is None:
        raise ValueError(f"The task's 'type' and 'index' must say which worker this process is. Received: {source}.")
    if task_type not in jobs:
        raise ValueError(
            f"The task's type must be one of the cluster's roles ({', '.join(sorted(jobs))}). "
            f"Received: {task_type!r} in {source}."
        )
    if len(jobs.get("chief", ())) > 1:
        raise ValueError(f"A cluster has one chief at most. Received: {len(jobs['chief'])} in {source}.")


def _task_index(task_type: str, task_id: Any, num_tasks: int, source: str) -> int:
    if isinstance(task_id, bool) or not isinstance(task_id, int | str) or not str(task_id).strip().isdecimal():
        raise ValueError(f"The task's index must be an integer of at least 0. Received: {task_id!r} in {source}.")
    index = int(task_id)
    if index >= num_tasks:
        raise ValueError(
            f"The task's index must be below the number of tasks of type {task_type!r}, {num_tasks}. "
            f"Received: index {index} in {source}."
        )
    return index
