"""How the replicas of a strategy reach each other: where they stand, and the way of each."""

import os
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdp import tf_seam
from tfdp import topology as topology_lib
from tfdp.collectives import (
    ClusterCommunicator,
    Communicator,
    Copies,
    FlatRoute,
    LevelledCommunicator,
    LocalCommunicator,
    Meeting,
    PairLinks,
    PlannedRoute,
    Route,
    StrategyCommunicator,
)
from tfdp.topology import Topology


def check_algorithm(algorithm: Any) -> None:
    """Raises a ValueError unless `algorithm` names one."""
    if algorithm not in topology_lib.ALGORITHMS:
        names = ", ".join(map(repr, topology_lib.ALGORITHMS))
        raise ValueError(f"`algorithm` must be one of {names}. Received: algorithm={algorithm!r}.")


def find_topology(wanted: Topology | str | None, cluster: topology_lib.Cluster | None, num_devices: int) -> Topology:
    """Returns where the replicas are.

    Args:
        wanted: what the user has said, if anything.
        cluster: the workers; None where this process is alone.
        num_devices: of each worker.

    Raises:
        TypeError: `wanted` is neither a topology nor a text.
        ValueError: it is one of other replicas.
    """
    if wanted is None and cluster is None and _is_of_several_workers(os.environ.get("TFDP_TOPOLOGY", "").strip()):
        return Topology.from_cluster(None, num_devices)
    if wanted is None:
        return topology_lib.topology_from_environment(os.environ, cluster, num_devices)
    if isinstance(wanted, str | os.PathLike):
        devices = None if cluster is None else num_devices
        wanted = topology_lib.topology_of_text(os.fspath(wanted), devices, source="`topology`")
    if not isinstance(wanted, Topology):
        raise TypeError(f"`topology` must be a tfdp.Topology, or its JSON, or a path. Received: {wanted!r}.")
    num_workers = 1 if cluster is None else cluster.num_workers
    workers = tuple(worker for worker in range(num_workers) for _ in range(num_devices))
    # The devices of one process may stand for several hosts, for trying out.
    fits = wanted.workers == workers or (num_workers == 1 and wanted.num_replicas == num_devices)
    if not fits:
        raise ValueError(
            f"`topology` must place {num_workers} worker(s) of {num_devices} device(s) each. Received: "
            f"{wanted.num_workers} worker(s) with {wanted.num_replicas} replica(s)."
        )
    return wanted


def _is_of_several_workers(text: str) -> bool:
    """Whether the environment's topology is that of a cluster, of which a process by itself takes no notice."""
    return bool(text) and topology_lib.topology_of_text(text, source="TFDP_TOPOLOGY").num_workers > 1


def suited(algorithm: str, topology: Topology, devices: Sequence[str]) -> str:
    """Returns the algorithm for `devices` of every worker.

    "auto" is flat where the GPUs of a host are in several processes: how these meet in groups of two was never tried.
    """
    is_untried = any("GPU" in device for device in devices) and topology.num_workers > topology.num_hosts
    return "flat" if algorithm == "auto" and is_untried else algorithm


def layout_of(plan: topology_lib.Plan, topology: Topology, bucket_bytes: int) -> str:
    """Returns what settles which replica carries which gradient, where not each carries all."""
    return "" if plan.is_flat else f"{'; '.join(topology.lines())}; bucket_bytes={bucket_bytes}"


def routes_of_process(strategy: tf.distribute.Strategy, plan: topology_lib.Plan) -> Sequence[Route]:
    """Returns the ways of replicas that are all in this process."""
    size = strategy.num_replicas_in_sync
    everyone: list[Communicator] = [StrategyCommunicator(size, replica) for replica in range(size)]
    if plan.is_plain:
        return [FlatRoute(communicator) for communicator in everyone]
    link = Copies(dict(enumerate(strategy.extended.worker_devices)))
    meeting = Meeting(range(size))

    def members_of(turn: int, replica: int) -> Communicator:
        tree = plan.over(turn).rooted(turn)
        return LocalCommunicator(meeting, replica, tree, plan.carriers(turn), link)

    return _planned(plan, everyone, meeting, link, members_of)


def routes_of_worker(
    strategy: tf.distribute.Strategy, plan: topology_lib.Plan, options: Any, *, is_ring: bool
) -> Sequence[Route]:
    """Returns the ways of the replicas of this process, one of several.

    Args:
        strategy: made so far.
        plan: of all replicas.
        options: tf.distribute.experimental.CommunicationOptions.
        is_ring: whether replicas that share a process must be members of a ring, where they could add up first.
    """
    if not tf_seam.in_multi_worker_mode(strategy):
        return routes_of_process(strategy, plan)
    size, first = strategy.num_replicas_in_sync, strategy.extended.first_replica
    devices = {first + i: device for i, device in enumerate(strategy.extended.worker_devices)}
    has_gpus = any("GPU" in device for device in devices.values())
    adds_up = strategy.extended.adds_up_locally
    ring = [tuple(range(size))] if adds_up and is_ring else []
    subgroups = tf_seam.Subgroups(strategy, devices, [*ring, *plan.groups()])

    def communicator(launcher: tf_seam.Launcher, group: Sequence[int], replica: int, in_order: bool) -> Communicator:
        return ClusterCommunicator(
            launcher,
            size=len(group),
            rank=group.index(replica),
            device=devices[replica],
            options=options,
            in_order=in_order,
        )

    everyone: list[Communicator] = [StrategyCommunicator(size, replica) for replica in devices]
    if ring:
        everyone = [communicator(subgroups(ring[0], replica), ring[0], replica, True) for replica in devices]
    elif not adds_up:
        in_order = len(devices) > 1 or has_gpus
        launchers = zip(devices, tf_seam.group_members(strategy), strict=True)
        everyone = [communicator(launcher, range(size), replica, in_order) for replica, launcher in launchers]
    if plan.is_plain:
        return [FlatRoute(one) for one in everyone]
    link, meeting = PairLinks(devices, subgroups, options), Meeting(list(devices))

    def members_of(turn: int, replica: int) -> Communicator:
        if len(plan.members) == 1:
            return LocalCommunicator(meeting, replica, topology_lib.Rooted(replica), [replica], Copies(devices))
        carriers, tree = plan.carriers(turn), plan.over(turn).rooted(turn)
        flat = communicator(subgroups(carriers, replica), carriers, replica, has_gpus)
        if plan.in_pairs:
            return LevelledCommunicator(flat, replica, tree, link)
        if not plan.above:
            return flat
        tops = plan.tops(turn)
        top = communicator(subgroups(tops, replica), tops, replica, has_gpus) if replica in tops else None
        return LevelledCommunicator.round_the_top(flat, replica, tree, link, top)

    return _planned(plan, everyone, meeting, link, members_of)


def _planned(
    plan: topology_lib.Plan,
    everyone: Sequence[Communicator],
    meeting: Meeting,
    link: Any,
    members_of: Callable[[int, int], Communicator],
) -> Sequence[Route]:
    """Returns the ways by a plan.

    Args:
        plan: of all replicas.
        everyone: what speaks for each replica of this process among all.
        meeting: of the replicas of this process.
        link: between replicas.
        members_of: (turn, replica) -> what speaks for a replica among those who carry what has this turn.
    """
    return [
        PlannedRoute(plan, one, meeting, link, {turn: members_of(turn, one.rank) for turn in plan.turns_of(one.rank)})
        for one in everyone
    ]
