"""Which replicas of a training share an island of fast links, a host and a rack, and who leads each group."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from tfdp.topology import description as descriptions
from tfdp.topology import drawing
from tfdp.topology.cluster import Cluster
from tfdp.topology.description import Description, Host
from tfdp.topology.hosts import Resolve, addresses_of, host_of, same_hosts
from tfdp.topology.levels import HOST, ISLAND, RACK, Group, Level, check_levels, make_level


@dataclass(frozen=True)
class Topology:
    """Where the replicas of a training stand. Equal on all workers, or they must not train together (`lines`).

    Replicas are numbered as TensorFlow does: those of worker 0 first, then those of worker 1, ..

    Example:
        >>> topology = Topology.from_hosts(["a", "a", "b", "b"], racks={"a": "r1", "b": "r2"})
        >>> topology.groups("host"), topology.leaders("host")
        (((0, 1), (2, 3)), (0, 2))
        >>> print(topology)
        4 replicas of 4 workers, on 2 hosts in 2 racks
        ├── rack r1
        │   └── host a
        │       ├── worker 0: replica 0
        │       └── worker 1: replica 1
        └── rack r2
            └── host b
                ├── worker 2: replica 2
                └── worker 3: replica 3

    Attributes:
        workers: the worker of each replica.
        levels: from the smallest groups to the largest: islands where they are known, hosts, racks where they are
            known, and what else a description names. Each group lies within one of the next level.
    """

    workers: tuple[int, ...]
    levels: tuple[Level, ...]

    def __post_init__(self) -> None:
        check_levels(self.workers, self.levels)

    @classmethod
    def from_cluster(
        cls,
        cluster: Cluster | None,
        devices_per_worker: int | Sequence[int] = 1,
        *,
        racks: Mapping[str, str] | None = None,
        resolve: Resolve | None = addresses_of,
    ) -> "Topology":
        """Returns the topology of a cluster: workers whose addresses name the same host are on one host.

        Args:
            cluster: the workers; None is one worker on this host.
            devices_per_worker: one number for all workers, or one for each.
            racks: the rack of each host, by the host as it is written in the first address that names it.
            resolve: name -> addresses; None compares names as they are written. See `hosts.same_hosts`.

        Raises:
            ValueError: a number of devices is wrong, or a host has no rack.
        """
        hosts = ["localhost"] if cluster is None else [host_of(address) for address in cluster.addresses]
        return cls.from_hosts(same_hosts(hosts, resolve), devices_per_worker, racks=racks)

    @classmethod
    def from_hosts(
        cls,
        hosts: Sequence[str],
        devices_per_worker: int | Sequence[int] = 1,
        *,
        racks: Mapping[str, str] | None = None,
    ) -> "Topology":
        """Returns the topology of workers on named hosts.

        Args:
            hosts: the host of each worker.
            devices_per_worker: one number for all workers, or one for each.
            racks: the rack of each host.

        Raises:
            ValueError: there is no host, a number of devices is wrong, or a host has no rack.
        """
        workers_of: dict[str, list[int]] = {}
        for worker, host in enumerate(hosts):
            workers_of.setdefault(host, []).append(worker)
        without = sorted(host for host in workers_of if racks is not None and host not in racks)
        if without:
            raise ValueError(
                f"`racks` must name the rack of every host: {', '.join(sorted(workers_of))}. Received: none of "
                f"{without[0]!r}."
            )
        described = tuple(
            Host(host, tuple(workers), () if racks is None else (racks[host],)) for host, workers in workers_of.items()
        )
        return cls.from_description(Description(described, () if racks is None else (RACK,)), devices_per_worker)

    @classmethod
    def from_json(
        cls, text: str, devices_per_worker: int | Sequence[int] | None = None, *, source: str = "The topology"
    ) -> "Topology":
        """Returns the topology that a JSON text describes; see `docs/topology.md` for the text.

        Args:
            text: a JSON object with "hosts", or with "racks" that have "hosts".
            devices_per_worker: one number for all workers, or one for each. None takes "devices_per_worker" of the
                text, else 1.
            source: what the text was read from, for messages.

        Raises:
            ValueError: the text describes no topology, or one of other devices.
        """
        return cls.from_description(descriptions.read(text, source=source), devices_per_worker, source=source)

    @classmethod
    def from_description(
        cls,
        description: Description,
        devices_per_worker: int | Sequence[int] | None = None,
        *,
        source: str = "The topology",
    ) -> "Topology":
        """Returns the topology of described hosts; arguments and errors as those of `from_json`."""
        workers = sorted(worker for host in description.hosts for worker in host.workers)
        if not workers or workers != list(range(len(workers))):
            wrong = next((worker for i, worker in enumerate(workers) if worker != i), None)
            received = "no worker" if wrong is None else f"workers {', '.join(map(str, workers))}"
            raise ValueError(f"{source} must name the workers 0, 1, .. once each. Received: {received}.")
        counts = _devices_of_workers(description.devices_per_worker, devices_per_worker, len(workers), source)
        of_replica = tuple(worker for worker, count in enumerate(counts) for _ in range(count))
        of_worker = _by_worker(of_replica)
        replicas_of = {
            host.name: [replica for worker in sorted(host.workers) for replica in of_worker[worker]]
            for host in description.hosts
        }
        if len(replicas_of) < len(description.hosts):
            names = [host.name for host in description.hosts]
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"Names of hosts must differ. Received: {twice!r} twice in {source}.")
        levels = [make_level(HOST, replicas_of)]
        for i, name in reversed(list(enumerate(description.levels_above))):
            groups: dict[str, list[int]] = {}
            for host in description.hosts:
                groups.setdefault(host.above[i], []).extend(replicas_of[host.name])
            levels.append(make_level(name, groups))
        topology = cls(of_replica, tuple(levels))
        islands = {host.name: host.islands for host in description.hosts if host.islands is not None}
        return topology.with_islands(islands) if islands else topology

    def with_islands(self, islands: Mapping[str, Sequence[Sequence[int]]]) -> "Topology":
        """Returns this topology with the islands of fast links within hosts.

        Args:
            islands: lists of devices by the name of their host. Devices are counted within the host, from 0, in the
                order of its replicas. A host that is left out is one island.

        Raises:
            ValueError: a host is unknown, or its islands do not hold each of its devices once.
        """
        hosts = {group.name: group.replicas for group in self.level(HOST).groups}
        groups: dict[str, list[int]] = {}
        for host, replicas in hosts.items():
            of_host = islands.get(host, [range(len(replicas))])
            if sorted(device for island in of_host for device in island) != list(range(len(replicas))):
                raise ValueError(
                    f"The islands of host {host!r} must hold each of its devices 0 to {len(replicas) - 1} once. "
                    f"Received: {[list(island) for island in of_host]}."
                )
            for i, island in enumerate(sorted(sorted(island) for island in of_host if island)):
                groups[f"{host}/{i}"] = [replicas[device] for device in island]
        unknown = sorted(islands.keys() - hosts.keys())
        if unknown:
            raise ValueError(f"Islands must be of the hosts {', '.join(hosts)}. Received: {unknown[0]!r}.")
        above = tuple(level for level in self.levels if level.name != ISLAND)
        return replace(self, levels=(make_level(ISLAND, groups), *above))

    @property
    def num_replicas(self) -> int:
        """The number of devices that train together."""
        return len(self.workers)

    @property
    def num_workers(self) -> int:
        """The number of processes that train together."""
        return self.workers[-1] + 1

    @property
    def num_hosts(self) -> int:
        """The number of machines."""
        return len(self.level(HOST).groups)

    @property
    def hosts(self) -> tuple[str, ...]:
        """The names of the hosts, in the order of their first replicas."""
        return tuple(group.name for group in self.level(HOST).groups)

    @property
    def is_flat(self) -> bool:
        """Whether hosts, and what they are in, say nothing: all replicas are in one, or each has one of its own."""
        return all(len(level.groups) in (1, self.num_replicas) for level in self.levels if level.name != ISLAND)

    @property
    def has_equal_hosts(self) -> bool:
        """Whether all hosts have the same number of replicas."""
        return len({len(replicas) for replicas in self.groups(HOST)}) == 1

    def has_level(self, name: str) -> bool:
        """Returns whether the groups of a level, such as "rack", are known."""
        return any(level.name == name for level in self.levels)

    def level(self, name: str) -> Level:
        """Returns the level "island", "host", "rack", ..; raises a ValueError where it is not known."""
        for level in self.levels:
            if level.name == name:
                return level
        raise ValueError(
            f"The level must be one of {', '.join(level.name for level in self.levels)}. Received: {name!r}."
        )

    def groups(self, level: str = HOST) -> tuple[tuple[int, ...], ...]:
        """Returns the replicas of each group of a level; raises as `level`."""
        return tuple(group.replicas for group in self.level(level).groups)

    def leaders(self, level: str = HOST) -> tuple[int, ...]:
        """Returns the first replica of each group of a level; raises as `level`."""
        return tuple(group.leader for group in self.level(level).groups)

    def group_of(self, replica: int, level: str = HOST) -> Group:
        """Returns the group of a level that a replica is in; raises a ValueError where there is none."""
        if not 0 <= replica < self.num_replicas:
            raise ValueError(f"The replica must be from 0 to {self.num_replicas - 1}. Received: {replica}.")
        groups = self.level(level).groups
        return groups[self._group_indices[level][replica]]

    def worker_of(self, replica: int) -> int:
        """Returns the worker that a replica is in."""
        return self.workers[replica]

    def host_of(self, replica: int) -> str:
        """Returns the name of the host that a replica is on."""
        return self.group_of(replica, HOST).name

    def rack_of(self, replica: int) -> str | None:
        """Returns the name of the rack that a replica is in, or None where racks are not known."""
        return self.group_of(replica, RACK).name if self.has_level(RACK) else None

    def replicas_of(self, name: str, level: str = HOST) -> tuple[int, ...]:
        """Returns the replicas of the host `name`, or of another group; raises a ValueError where there is none."""
        for group in self.level(level).groups:
            if group.name == name:
                return group.replicas
        names = ", ".join(group.name for group in self.level(level).groups)
        raise ValueError(f"The {level} must be one of {names}. Received: {name!r}.")

    def workers_of(self, host: str) -> tuple[int, ...]:
        """Returns the workers on a host; raises as `replicas_of`."""
        return tuple(dict.fromkeys(self.workers[replica] for replica in self.replicas_of(host)))

    def lines(self) -> list[str]:
        """Returns what must be equal on all workers before they meet: every group, without its name."""
        groups = [(level.name, group.replicas) for level in self.levels for group in level.groups]
        return [
            f"{drawing.counted(self.num_replicas, 'replica')}",
            *(f"worker with {_replicas(replicas)}" for replicas in _by_worker(self.workers).values()),
            *(f"{name} with {_replicas(replicas)}" for name, replicas in groups),
        ]

    def line_names(self) -> list[str]:
        """Returns a name for each of `lines`, for messages; workers may know a host by different ones."""
        names = [group.name for level in self.levels for group in level.groups]
        return ["", *(str(worker) for worker in range(self.num_workers)), *names]

    def to_json(self) -> str:
        """Returns the text that `from_json` turns into an equal topology."""
        above = [level for level in reversed(self.levels) if level.name not in (ISLAND, HOST)]
        hosts = tuple(
            Host(
                group.name,
                self.workers_of(group.name),
                tuple(self.group_of(group.leader, level.name).name for level in above),
                self._islands_of(group),
            )
            for group in self.level(HOST).groups
        )
        counts = tuple(len(replicas) for replicas in _by_worker(self.workers).values())
        devices = counts[0] if len(set(counts)) == 1 else counts
        return descriptions.write(Description(hosts, tuple(level.name for level in above), devices))

    def __str__(self) -> str:
        counts = [drawing.counted(len(level.groups), level.name) for level in self.levels if level.name != ISLAND]
        label = (
            f"{drawing.counted(self.num_replicas, 'replica')} of {drawing.counted(self.num_workers, 'worker')}, "
            f"on {' in '.join(counts)}"
        )
        top = self.levels[-1]
        return drawing.drawn(drawing.Branch(label, [self._branch(top, group) for group in top.groups]))

    def _branch(self, level: Level, group: Group) -> drawing.Branch:
        """Returns the tree of a group: those within it, and workers with their replicas in the smallest."""
        i = self.levels.index(level)
        if i:
            inner = self.levels[i - 1]
            within = set(group.replicas)
            children = [self._branch(inner, one) for one in inner.groups if one.leader in within]
        else:
            of_worker: dict[int, list[int]] = {}
            for replica in group.replicas:
                of_worker.setdefault(self.workers[replica], []).append(replica)
            children = [
                drawing.Branch(f"worker {worker}: {_replicas(replicas)}") for worker, replicas in of_worker.items()
            ]
        return drawing.Branch(f"{level.name} {group.name}", children)

    def _islands_of(self, host: Group) -> tuple[tuple[int, ...], ...] | None:
        if not self.has_level(ISLAND):
            return None
        position = {replica: device for device, replica in enumerate(host.replicas)}
        return tuple(
            tuple(position[replica] for replica in island) for island in self.groups(ISLAND) if island[0] in position
        )

    @cached_property
    def _group_indices(self) -> dict[str, dict[int, int]]:
        return {
            level.name: {replica: i for i, group in enumerate(level.groups) for replica in group.replicas}
            for level in self.levels
        }


def _by_worker(workers: Sequence[int]) -> dict[int, list[int]]:
    """Returns the replicas of each worker, given the worker of each replica."""
    replicas_of: dict[int, list[int]] = {}
    for replica, worker in enumerate(workers):
        replicas_of.setdefault(worker, []).append(replica)
    return replicas_of


def _replicas(replicas: Sequence[int]) -> str:
    return f"replica{'' if len(replicas) == 1 else 's'} {drawing.numbers(replicas)}"


def _devices_of_workers(
    described: int | Sequence[int] | None, given: int | Sequence[int] | None, num_workers: int, source: str
) -> tuple[int, ...]:
    """Returns the number of devices of each worker."""
    both = [
        (value,) * num_workers if isinstance(value, int) else tuple(value)
        for value in (described, given)
        if value is not None
    ]
    counts = both[-1] if both else (1,) * num_workers
    if len(counts) != num_workers or not all(isinstance(count, int) and count >= 1 for count in counts):
        raise ValueError(
            f"`devices_per_worker` must be a number of at least 1, or one for each of {num_workers} workers. "
            f"Received: {described if given is None else given!r}."
        )
    if len(both) == 2 and both[0] != both[1]:
        raise ValueError(
            f"The workers must have the devices that {source} describes: devices_per_worker={described!r}. Received: "
            f"{given!r}. Correct one of them, or leave 'devices_per_worker' out."
        )
    return counts
