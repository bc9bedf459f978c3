"""The cluster of processes that mpirun or mpiexec has started, where their hosts can be known."""

from collections.abc import Mapping
from dataclasses import dataclass

from tfdp.topology.cluster import Cluster, make_cluster
from tfdp.topology.hostlists import compress, hosts_with_counts
from tfdp.topology.ports import addresses, number_of_name, port_base
from tfdp.topology.variables import integer


@dataclass(frozen=True)
class Launch:
    """What MPI tells of this process in its environment.

    Attributes:
        rank: among all processes.
        num_processes: how many there are.
        local_rank: among those of this host; None where it is not told.
        num_local: how many there are on this host; None where it is not told.
        name: of the variable that holds the rank.
    """

    rank: int
    num_processes: int
    local_rank: int | None
    num_local: int | None
    name: str


def launch_of_mpi(environment: Mapping[str, str]) -> Launch | None:
    """Returns what Open MPI, or Hydra (MPICH, Intel MPI, MVAPICH), tells this process, or None where there is none.

    Raises:
        ValueError: a variable is no number, or the rank is not below the number of processes.
    """
    families = (
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
        ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    )
    for name, size_name, local_rank_name, local_size_name in families:
        rank, size = integer(environment, name), integer(environment, size_name)
        if rank is None or size is None:
            continue
        if rank >= size:
            raise ValueError(
                f"{name} must be below {size_name}, as MPI sets them. Received: {name}={rank}, {size_name}={size}. "
                "Start workers with `mpirun`, or set TF_CONFIG."
            )
        return Launch(rank, size, integer(environment, local_rank_name), integer(environment, local_size_name), name)
    return None


def cluster_of_mpi(environment: Mapping[str, str]) -> Cluster | None:
    """Returns the cluster of all processes that MPI has started, or None where it has started one or none.

    MPI names no hosts in the environment. They are taken from TFDP_HOSTS ("a:2,b:2"), or all processes are on this one.

    Raises:
        ValueError: the hosts cannot be known, or contradict what MPI tells.
    """
    launch = launch_of_mpi(environment)
    if launch is None or launch.num_processes < 2:
        return None
    hosts, origin = _hosts(launch, environment)
    num_before = hosts[: launch.rank].count(hosts[launch.rank])
    num_here = hosts.count(hosts[launch.rank])
    told = (launch.local_rank, launch.num_local)
    if any(one not in (None, derived) for one, derived in zip(told, (num_before, num_here), strict=True)):
        raise ValueError(
            f"Ranks must fill the hosts one after the other, in the order of {origin}: rank {launch.rank} is number "
            f"{num_before} of {num_here} on {hosts[launch.rank]}. Received: number {launch.local_rank} of "
            f"{launch.num_local} from MPI. Map ranks by slots (`mpirun --map-by slot`), correct TFDP_HOSTS, or set "
            "TF_CONFIG."
        )
    job = integer(environment, "SLURM_JOB_ID")
    # A step of Slurm, where mpirun has made one, is not that of all its processes.
    base = port_base(environment, job=number_of_name(environment.get("PMIX_NAMESPACE", "")) if job is None else job)
    source = f"{launch.num_processes} processes of MPI on {compress(dict.fromkeys(hosts))}"
    return make_cluster({"worker": addresses(hosts, base)}, "worker", launch.rank, source=source)


def _hosts(launch: Launch, environment: Mapping[str, str]) -> tuple[list[str], str]:
    """Returns the host of each rank, and what it was read from."""
    listed = environment.get("TFDP_HOSTS", "").strip()
    if listed:
        counts = hosts_with_counts(listed, name="TFDP_HOSTS")
        num_workers = sum(count for _, count in counts)
        if num_workers != launch.num_processes:
            raise ValueError(
                f"TFDP_HOSTS must have a place for each of the {launch.num_processes} processes of MPI. Received: "
                f"{num_workers} places in TFDP_HOSTS={listed!r}."
            )
        return [host for host, count in counts for _ in range(count)], "TFDP_HOSTS"
    if launch.num_local == launch.num_processes:
        return ["127.0.0.1"] * launch.num_processes, "this host"
    raise ValueError(
        "MPI does not say in the environment on which hosts its processes are, and each worker must know the addresses "
        f"of all. Received: {launch.name}={launch.rank} of {launch.num_processes} processes, without TFDP_HOSTS. Name "
        "the hosts in the order of ranks with their numbers of processes, as in `mpirun -x TFDP_HOSTS=a:4,b:4 ..` "
        "(Hydra: `mpiexec -genv TFDP_HOSTS a:4,b:4 ..`), or set TF_CONFIG. Inside of Slurm start workers with `srun`."
    )
