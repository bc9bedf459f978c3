"""The command `tfdp topology`: which replicas share a host and a rack, drawn as a tree."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from tfdp.cli.devices import visible_gpus
from tfdp.topology import Topology, find_cluster, gpu_islands, topology_from_environment, topology_of_text
from tfdp.topology.hostlists import expand, hosts_with_counts
from tfdp.topology.slurm import tasks_per_node
from tfdp.topology.variables import integer


def topology(
    hosts: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="Hosts with their numbers of workers: a:4,b:4.", show_default=False),
    ] = None,
    slurm: Annotated[
        str | None,
        typer.Option(metavar="NODES", help="A list of nodes as Slurm prints it: node[01-03].", show_default=False),
    ] = None,
    per_node: Annotated[
        str,
        typer.Option(
            "--tasks-per-node", metavar="N", help="Workers on each node of --slurm: one number, or as in 2(x3),1."
        ),
    ] = "1",
    file: Annotated[
        Path | None, typer.Option(help="A JSON file as TFDP_TOPOLOGY may name it.", show_default=False)
    ] = None,
    devices: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Devices of each worker. By default what the file says, or this machine's GPUs, or 1.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON that --file and TFDP_TOPOLOGY take.")] = False,
) -> None:
    """Draw which replicas share a host and a rack, as this process's environment tells or as options say.

    The environment tells the workers by TF_CONFIG, mpirun or srun, and where they stand by TFDP_TOPOLOGY.

    For example:

    tfdp topology --hosts a:4,b:4

    tfdp topology --slurm 'node[01-03]' --tasks-per-node 2 --devices 4

    srun tfdp topology
    """
    try:
        found = _topology(hosts, slurm, per_node, file, devices)
    except ValueError as error:
        typer.echo(f"tfdp topology: {error}", err=True)
        raise typer.Exit(2) from None
    typer.echo(found.to_json() if as_json else str(found))


def _topology(hosts: str | None, slurm: str | None, per_node: str, file: Path | None, devices: int | None) -> Topology:
    given = [name for name, value in (("--hosts", hosts), ("--slurm", slurm), ("--file", file)) if value is not None]
    if len(given) > 1:
        raise ValueError(f"Give one of --hosts, --slurm and --file, or none. Received: {' and '.join(given)}.")
    if slurm is None and per_node != "1":
        raise ValueError(f"--tasks-per-node goes with --slurm. Received: --tasks-per-node {per_node} without it.")
    if file is not None:
        return topology_of_text(str(file), devices, source="--file")
    if hosts is not None:
        counts = hosts_with_counts(hosts, name="--hosts")
        return Topology.from_hosts([host for host, count in counts for _ in range(count)], devices or 1)
    if slurm is not None:
        return Topology.from_hosts(_hosts_of_tasks(slurm, per_node), devices or 1)
    return _topology_of(os.environ, devices)


def _hosts_of_tasks(slurm: str, per_node: str) -> list[str]:
    """Returns the node of each task, in blocks."""
    nodes, counts = expand(slurm), tasks_per_node(per_node, name="--tasks-per-node")
    if len(counts) == 1:
        counts *= len(nodes)
    if len(counts) != len(nodes):
        raise ValueError(
            f"--tasks-per-node must be one number, or one for each of {len(nodes)} nodes. Received: numbers for "
            f"{len(counts)} in {per_node!r}."
        )
    return [node for node, count in zip(nodes, counts, strict=True) for _ in range(count)]


def _topology_of(environment: Mapping[str, str], devices: int | None) -> Topology:
    """Returns the topology that the environment tells, and says on standard error where the cluster is from."""
    found = find_cluster(environment)
    source = f"from {found.source}" if found.cluster is not None else "no cluster in the environment: one worker"
    for text in (source, *found.warnings):
        typer.echo(f"tfdp topology: {text}", err=True)
    gpus = visible_gpus(environment)
    if devices is None and not environment.get("TFDP_TOPOLOGY", "").strip():
        devices = len(gpus) or integer(environment, "TFDP_DEVICES_PER_WORKER") or 1
    topology = topology_from_environment(environment, found.cluster, devices)
    # Only of this host one can ask; the others' islands are theirs to tell.
    if found.cluster is None and not topology.has_level("island") and topology.num_replicas == len(gpus):
        islands = gpu_islands(gpus)
        return topology if islands is None else topology.with_islands({topology.hosts[0]: islands})
    return topology
