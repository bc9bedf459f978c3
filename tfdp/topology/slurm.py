"""The cluster of a Slurm step: every task that srun starts is a worker."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tfdp.topology.cluster import Cluster, make_cluster
from tfdp.topology.hostlists import MAX_HOSTS, compress, expand
from tfdp.topology.ports import addresses, port_base
from tfdp.topology.variables import first_set, integer

# Steps that Slurm itself makes, such as for the shell of salloc, have the highest numbers of 32 bits.
FIRST_SPECIAL_STEP = 0xFFFFFF00


@dataclass(frozen=True)
class Step:
    """A step of several tasks, and which of them this process is.

    Attributes:
        hosts: the node of each task, by rank.
        rank: the rank of this process.
    """

    hosts: tuple[str, ...]
    rank: int


def cluster_of_slurm(environment: Mapping[str, str]) -> Cluster | None:
    """Returns the cluster of the step that this process is a task of, or None outside of steps and in those of one.

    Raises:
        ValueError: the variables of Slurm contradict each other.
    """
    step = step_of_slurm(environment)
    if step is None:
        return None
    job, number = integer(environment, "SLURM_JOB_ID", "SLURM_JOBID"), integer(environment, "SLURM_STEP_ID")
    workers = addresses(step.hosts, port_base(environment, job=job or 0, step=number or 0))
    source = f"the Slurm step of {len(workers)} tasks on {compress(dict.fromkeys(step.hosts))}"
    return make_cluster({"worker": workers}, "worker", step.rank, source=source)


def num_tasks_of_slurm(environment: Mapping[str, str]) -> int | None:
    """Returns the number of tasks of the step that this process belongs to, or None outside of steps.

    A script of sbatch and a shell of salloc are in none: what they start is one process, not a task of srun.

    Raises:
        ValueError: a variable of Slurm is no number.
    """
    step, rank = integer(environment, "SLURM_STEP_ID", "SLURM_STEPID"), integer(environment, "SLURM_PROCID")
    if step is None or rank is None or step >= FIRST_SPECIAL_STEP:
        return None
    # SLURM_NTASKS may be that of the job, where a step was made of a part of it.
    return integer(environment, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS")


def step_of_slurm(environment: Mapping[str, str]) -> Step | None:
    """Returns the tasks of the step that this process belongs to, or None outside of steps and in those of one task.

    Raises:
        ValueError: the variables of Slurm contradict each other.
    """
    num_tasks, rank = num_tasks_of_slurm(environment), integer(environment, "SLURM_PROCID")
    if num_tasks is None or num_tasks < 2 or rank is None:
        return None
    nodes, counts = nodes_of_slurm(environment)
    if sum(counts) != num_tasks:
        raise _contradiction(f"{sum(counts)} tasks on {compress(nodes)}, and {num_tasks} tasks in all", environment)
    if rank >= num_tasks:
        raise _contradiction(f"rank {rank} of {num_tasks} tasks", environment)
    tasks = _distributed(counts, environment)
    hosts = tuple(nodes[node] for node in tasks)
    derived = {"SLURM_NODEID": tasks[rank], "SLURM_LOCALID": tasks[:rank].count(tasks[rank])}
    for name, value in derived.items():
        if integer(environment, name) not in (None, value):
            raise _contradiction(
                f"{name}={environment[name]} of rank {rank}, which by the distribution of tasks should be {value}",
                environment,
            )
    return Step(hosts, rank)


def nodes_of_slurm(environment: Mapping[str, str]) -> tuple[list[str], list[int]]:
    """Returns the nodes of the step, or else of the job, and the number of tasks on each.

    Raises:
        ValueError: they are not told, or do not fit.
    """
    names = first_set(environment, "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
    counts = first_set(environment, "SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE")
    if names == "SLURM_JOB_NODELIST" or names == "SLURM_NODELIST":
        counts = first_set(environment, "SLURM_TASKS_PER_NODE", "SLURM_STEP_TASKS_PER_NODE")
    if names is None or counts is None:
        raise _contradiction("no list of nodes, or no numbers of their tasks", environment)
    nodes, tasks = expand(environment[names]), tasks_per_node(environment[counts], name=counts)
    if len(nodes) != len(tasks):
        raise _contradiction(f"{len(nodes)} nodes, and numbers of tasks for {len(tasks)}", environment)
    return nodes, tasks


def tasks_per_node(text: str, *, name: str = "SLURM_TASKS_PER_NODE") -> list[int]:
    """Returns the number of tasks on each node.

    Example:
        >>> tasks_per_node("2(x3),1")
        [2, 2, 2, 1]

    Raises:
        ValueError: `text` is no such list; `name` is what the message calls it.
    """
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?", part.strip())
        repeats = int(match[2] or 1) if match else 0
        if match is None or int(match[1]) < 1 or not 1 <= repeats <= MAX_HOSTS:
            raise ValueError(
                f"{name} must hold the tasks of each node, at least 1, such as '2(x3),1' for 2, 2, 2 and 1. "
                f"Received: {text!r}."
            )
        counts += [int(match[1])] * repeats
    return counts


def plane_distribution(counts: Sequence[int], plane: int) -> list[int]:
    """Returns the node of each task, where every node in turn gets `plane` tasks until it has its own number.

    Example:
        >>> plane_distribution([2, 2, 1], plane=1)
        [0, 1, 2, 0, 1]
    """
    left, tasks = list(counts), []
    while any(left):
        for node, num_left in enumerate(left):
            taken = min(plane, num_left)
            tasks += [node] * taken
            left[node] -= taken
    return tasks


def _distributed(counts: Sequence[int], environment: Mapping[str, str]) -> list[int]:
    kind = environment.get("SLURM_DISTRIBUTION", "").lower().split(":")[0].split(",")[0]
    name, _, size = kind.partition("=")
    if name in ("", "block", "*", "nopack", "pack", "unknown"):
        return plane_distribution(counts, plane=max(counts))
    if name == "cyclic":
        return plane_distribution(counts, plane=1)
    if name == "plane":
        plane = int(size) if size.isdecimal() else integer(environment, "SLURM_DIST_PLANESIZE")
        if plane:
            return plane_distribution(counts, plane)
    raise ValueError(
        "The distribution of Slurm's tasks over nodes must be block, cyclic or plane, for every task to know where the "
        f"others are. Received: SLURM_DISTRIBUTION={environment['SLURM_DISTRIBUTION']!r}. Run srun with "
        "--distribution=block, or set TF_CONFIG."
    )


def _contradiction(received: str, environment: Mapping[str, str]) -> ValueError:
    told = ", ".join(f"{name}={environment[name]!r}" for name in _TOLD if environment.get(name))
    return ValueError(
        f"The variables of Slurm must describe one step of tasks. Received: {received} ({told}). Start workers with "
        "`srun`, or set TF_CONFIG."
    )


_TOLD = (
    "SLURM_STEP_NODELIST",
    "SLURM_JOB_NODELIST",
    "SLURM_STEP_TASKS_PER_NODE",
    "SLURM_TASKS_PER_NODE",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_NTASKS",
    "SLURM_DISTRIBUTION",
)
