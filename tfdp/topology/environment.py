"""What the environment of a process tells of its cluster, whoever has started it, and of where its workers stand."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tfdp.topology.cluster import Cluster
from tfdp.topology.hosts import Resolve, addresses_of
from tfdp.topology.mpi import cluster_of_mpi, launch_of_mpi
from tfdp.topology.slurm import cluster_of_slurm, num_tasks_of_slurm, step_of_slurm
from tfdp.topology.structure import Topology
from tfdp.topology.tf_config import cluster_of_tf_config


@dataclass(frozen=True)
class Found:
    """A cluster, and what it was read from.

    Attributes:
        cluster: the workers; None where this process trains alone.
        source: "TF_CONFIG", "MPI", "Slurm", or "" without a cluster.
        warnings: a sentence on each contradiction in the environment.
    """

    cluster: Cluster | None
    source: str
    warnings: tuple[str, ...] = ()


def cluster_from_environment(environment: Mapping[str, str]) -> Cluster | None:
    """Returns the cluster that `environment` describes, or None where it describes none.

    TF_CONFIG decides where it is set, also to train alone (`{}`). Without it the processes of mpirun are workers, and
    so are the tasks of srun.

    Args:
        environment: variables by name, such as `os.environ`.

    Raises:
        ValueError: TF_CONFIG, or what Slurm or MPI have set, does not describe a cluster that can train.
    """
    return find_cluster(environment).cluster


def find_cluster(environment: Mapping[str, str]) -> Found:
    """Returns the cluster that `cluster_from_environment` does, and what it was read from.

    Raises:
        ValueError: as `cluster_from_environment`.
    """
    text = environment.get("TF_CONFIG", "")
    if text.strip():
        cluster = cluster_of_tf_config(text)
        warnings = _warnings(cluster.num_workers, environment) if cluster is not None else ()
        return Found(cluster, "TF_CONFIG" if cluster is not None else "", warnings)
    if _mpi_decides(environment):
        cluster = cluster_of_mpi(environment)
        return Found(cluster, "MPI" if cluster is not None else "")
    cluster = cluster_of_slurm(environment)
    return Found(cluster, "Slurm" if cluster is not None else "")


def topology_from_environment(
    environment: Mapping[str, str],
    cluster: Cluster | None,
    devices_per_worker: int | Sequence[int] | None = None,
    *,
    resolve: Resolve | None = addresses_of,
) -> Topology:
    """Returns where the workers of `cluster` stand: as TFDP_TOPOLOGY says, or else by the hosts of their addresses.

    Args:
        environment: variables by name. TFDP_TOPOLOGY is a JSON text, or the path of a file with one.
        cluster: the workers; None is one worker on this host.
        devices_per_worker: one number for all workers, or one for each; None is 1, or what TFDP_TOPOLOGY says.
        resolve: name -> addresses; see `Topology.from_cluster`.

    Raises:
        ValueError: TFDP_TOPOLOGY cannot be read, or is that of other workers.
    """
    chosen = environment.get("TFDP_TOPOLOGY", "").strip()
    if not chosen:
        return Topology.from_cluster(cluster, devices_per_worker or 1, resolve=resolve)
    topology = topology_of_text(chosen, devices_per_worker, source="TFDP_TOPOLOGY")
    num_workers = 1 if cluster is None else cluster.num_workers
    if topology.num_workers != num_workers:
        raise ValueError(
            f"TFDP_TOPOLOGY must place each of the cluster's workers, 0 to {num_workers - 1}. Received: workers 0 to "
            f"{topology.num_workers - 1}. Correct or unset TFDP_TOPOLOGY."
        )
    return topology


def topology_of_text(
    chosen: str, devices_per_worker: int | Sequence[int] | None = None, *, source: str = "The topology"
) -> Topology:
    """Returns the topology of a JSON text, or of the file that has it.

    Args:
        chosen: the text, which begins with a brace, or the path of a file.
        devices_per_worker: see `Topology.from_json`.
        source: what has named it, for messages.

    Raises:
        ValueError: the file cannot be read, or the text describes no topology.
    """
    if chosen.lstrip().startswith("{"):
        return Topology.from_json(chosen, devices_per_worker, source=source)
    try:
        text = Path(chosen).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ValueError(
            f"{source} must be a JSON text that begins with a brace, or the path of a file with one. Received: "
            f"{chosen!r} ({reason})."
        ) from error
    return Topology.from_json(text, devices_per_worker, source=f"{source} ({chosen})")


def _mpi_decides(environment: Mapping[str, str]) -> bool:
    """Whether MPI has started this process inside of what Slurm has, rather than srun itself with MPI's variables."""
    launch = launch_of_mpi(environment)
    if launch is None:
        return False
    step = step_of_slurm(environment)
    return step is None or (step.rank, len(step.hosts)) != (launch.rank, launch.num_processes)


def _warnings(num_workers: int, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Returns a sentence where a launcher has started another number of processes than TF_CONFIG has workers."""
    try:
        launch, num_tasks = launch_of_mpi(environment), num_tasks_of_slurm(environment)
    except ValueError:  # of variables that TF_CONFIG makes superfluous
        return ()
    started = {"MPI": launch.num_processes if launch is not None else None, "Slurm": num_tasks}
    return tuple(
        f"TF_CONFIG has {num_workers} workers, and {name} has started {number} processes. TF_CONFIG counts. Unset it "
        f"to train with those of {name}."
        for name, number in started.items()
        if number is not None and number > 1 and number != num_workers
    )
