"""Processes of mpirun as workers, where their hosts can be known."""

import pytest

from tfdp.topology.mpi import cluster_of_mpi, launch_of_mpi


def open_mpi(rank, size=4, local_rank=None, local_size=None, **more):
    local_rank = rank % 2 if local_rank is None else local_rank
    return {
        "OMPI_COMM_WORLD_RANK": str(rank),
        "OMPI_COMM_WORLD_SIZE": str(size),
        "OMPI_COMM_WORLD_LOCAL_RANK": str(local_rank),
        "OMPI_COMM_WORLD_LOCAL_SIZE": str(local_size or 2),
        **more,
    }


def hydra(rank, size=4, **more):
    return {
        "PMI_RANK": str(rank),
        "PMI_SIZE": str(size),
        "MPI_LOCALRANKID": str(rank % 2),
        "MPI_LOCALNRANKS": "2",
        **more,
    }


def refusal(environment):
    with pytest.raises(ValueError) as raised:
        cluster_of_mpi(environment)
    return str(raised.value)


@pytest.mark.parametrize("launcher", [open_mpi, hydra])
def test_hosts_that_are_named_make_the_same_cluster_on_every_rank(launcher):
    clusters = [cluster_of_mpi(launcher(rank, TFDP_HOSTS="a:2,b:2")) for rank in range(4)]
    assert {cluster.addresses for cluster in clusters} == {("a:10000", "a:10001", "b:10000", "b:10001")}
    assert [cluster.rank for cluster in clusters] == [0, 1, 2, 3]


def test_processes_that_are_all_on_this_host_need_no_names():
    cluster = cluster_of_mpi(open_mpi(1, size=2, local_size=2, local_rank=1))
    assert cluster.addresses == ("127.0.0.1:10000", "127.0.0.1:10001")


def test_launches_have_ports_of_their_own_by_their_name_or_the_slurm_job_around():
    alone = {"size": 2, "local_size": 2, "local_rank": 0}
    named = cluster_of_mpi(open_mpi(0, **alone, PMIX_NAMESPACE="prterun-n1-77@1"))
    in_job = [cluster_of_mpi(open_mpi(0, **alone, SLURM_JOB_ID="9", SLURM_STEP_ID=step)) for step in ("0", "1")]
    assert named.addresses != in_job[0].addresses
    # mpirun starts the processes of other nodes in a step, and those of its own node outside of it.
    assert in_job[0].addresses == in_job[1].addresses == ("127.0.0.1:10576", "127.0.0.1:10577")


def test_one_process_is_alone():
    assert cluster_of_mpi(open_mpi(0, size=1, local_size=1)) is None
    assert cluster_of_mpi({}) is None


@pytest.mark.parametrize("environment", [open_mpi(3), hydra(3), {"PMI_RANK": "3", "PMI_SIZE": "4"}])
def test_unknown_hosts_are_asked_for_with_the_option_that_passes_them_on(environment):
    message = refusal(environment)
    assert "MPI does not say in the environment on which hosts its processes are" in message
    assert "_RANK=3 of 4 processes, without TFDP_HOSTS" in message
    assert "`mpirun -x TFDP_HOSTS=a:4,b:4 ..`" in message
    assert "or set TF_CONFIG" in message


def test_hosts_with_too_few_places_are_refused():
    message = refusal(open_mpi(0, TFDP_HOSTS="a:2,b:1"))
    assert "for each of the 4 processes of MPI. Received: 3 places in TFDP_HOSTS='a:2,b:1'." in message


def test_ranks_in_another_order_than_the_hosts_are_refused():
    # mpirun --map-by node: ranks 0 and 2 are on a, 1 and 3 on b
    message = refusal(open_mpi(1, local_rank=0, TFDP_HOSTS="a:2,b:2"))
    assert "rank 1 is number 1 of 2 on a. Received: number 0 of 2 from MPI" in message
    assert "`mpirun --map-by slot`" in message


def test_hosts_with_other_numbers_than_mpi_has_are_refused():
    assert "Received: number 0 of 2 from MPI" in refusal(open_mpi(0, TFDP_HOSTS="a:3,b:1"))


def test_a_rank_beyond_the_size_is_refused():
    assert "OMPI_COMM_WORLD_RANK must be below OMPI_COMM_WORLD_SIZE" in refusal(open_mpi(4))


def test_open_mpi_is_asked_first():
    launch = launch_of_mpi({**hydra(1, size=9), **open_mpi(3)})
    assert (launch.rank, launch.num_processes, launch.local_rank, launch.num_local) == (3, 4, 1, 2)
