"""The JSON in which users describe hosts, and in which a topology is kept."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_EXAMPLE = '{"racks": [{"name": "r1", "hosts": [{"name": "a", "workers": [0, 1]}]}]}'


@dataclass(frozen=True)
class Host:
    """One host.

    Attributes:
        name: what it is called.
        workers: the workers on it.
        above: the names of what it is in, from the outside in; (rack,) where there are racks only.
        islands: the devices of the host that have fast links to each other, by their numbers within it; None where that
            is not known.
    """

    name: str
    workers: tuple[int, ...]
    above: tuple[str, ...] = ()
    islands: tuple[tuple[int, ...], ...] | None = None


@dataclass(frozen=True)
class Description:
    """All hosts of a cluster.

    Attributes:
        hosts: in any order.
        levels_above: what hosts are in, from the outside in, such as ("zone", "rack").
        devices_per_worker: one number for all workers, or one for each; None where that is not told.
    """

    hosts: tuple[Host, ...]
    levels_above: tuple[str, ...] = ()
    devices_per_worker: int | tuple[int, ...] | None = None


def read(text: str, *, source: str) -> Description:
    """Returns what a JSON text describes.

    Example:
        >>> read('{"hosts": [{"name": "a", "workers": [0, 1]}]}', source="a test").hosts
        (Host(name='a', workers=(0, 1), above=(), islands=None),)

    Args:
        text: an object with "hosts", or with "racks" that have "hosts", or with any number of levels, each named by the
            plural of what it holds. Beside the outermost there may be "devices_per_worker".
        source: what the text was read from, for messages.

    Raises:
        ValueError: `text` is something else.
    """
    try:
        whole = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{source} must be JSON, such as {_EXAMPLE}. Received: {text!r} ({error}).") from error
    if not isinstance(whole, dict):
        raise ValueError(f"{source} must be a JSON object, such as {_EXAMPLE}. Received: {text!r}.")
    devices = whole.pop("devices_per_worker", None)
    if isinstance(devices, list):
        devices = _numbers(devices, "'devices_per_worker'", source, at_least=1)
    elif devices is not None and not _is_number(devices, at_least=1):
        raise ValueError(
            f"'devices_per_worker' must be a number of at least 1, or a list with one for each worker. Received: "
            f"{devices!r} in {source}."
        )
    plurals = _levels(whole, source)
    hosts = tuple(_hosts(whole, (), plurals, source))
    return Description(hosts, tuple(plural.removesuffix("s") for plural in plurals[:-1]), devices)


def write(description: Description) -> str:
    """Returns the JSON text in which `read` finds the same hosts."""
    devices = description.devices_per_worker
    nodes: dict[tuple[str, ...], dict[str, Any]] = {(): {} if devices is None else {"devices_per_worker": devices}}
    for host in description.hosts:
        for depth, level in enumerate(description.levels_above):
            path = host.above[: depth + 1]
            if path not in nodes:
                nodes[path] = {"name": path[-1]}
                nodes[path[:-1]].setdefault(f"{level}s", []).append(nodes[path])
        islands = {} if host.islands is None else {"islands": host.islands}
        nodes[host.above].setdefault("hosts", []).append({"name": host.name, "workers": host.workers, **islands})
    return json.dumps(nodes[()])


def _levels(whole: Mapping[str, Any], source: str) -> tuple[str, ...]:
    """Returns what the lists are called on the way to the first host, the last of them "hosts"."""
    plurals: list[str] = []
    node: Any = whole
    while plurals[-1:] != ["hosts"]:
        keys = [key for key in node if key != "name"] if isinstance(node, dict) else []
        if len(keys) != 1 or not re.fullmatch(r"(?!islands$|workers$)\w+s", keys[0]) or keys[0] in plurals:
            raise ValueError(
                f"{source} must hold one list in each level, such as 'racks' and then 'hosts': {_EXAMPLE}. Received: "
                f"{', '.join(map(repr, keys)) or 'none'}{f' in {plurals[-1]!r}' if plurals else ''}."
            )
        plurals.append(keys[0])
        children = node[keys[0]]
        node = children[0] if isinstance(children, list) and children else None
    return tuple(plurals)


def _hosts(node: Mapping[str, Any], above: tuple[str, ...], plurals: Sequence[str], source: str) -> Iterator[Host]:
    """Yields the hosts within `node`, which lies in the groups `above`."""
    plural, where = plurals[len(above)], f" of {above[-1]!r}" if above else ""
    children = node.get(plural)
    if not isinstance(children, list) or not children or set(node) - {"name", plural}:
        received = next((key for key in node if key not in ("name", plural)), None)
        raise ValueError(
            f"{source} must have nothing but a list of {plural!r} here, as in its first branch: {_EXAMPLE}. Received: "
            f"{repr(children) if received is None else repr(received)}{where}."
        )
    for child in children:
        name = child.get("name") if isinstance(child, dict) else None
        if not isinstance(name, str) or not name.strip():
            raise ValueError(f"Each of {plural!r} must be an object with a 'name'. Received: {child!r} in {source}.")
        if plural == "hosts":
            yield _host(child, name, above, source)
        else:
            yield from _hosts(child, (*above, name), plurals, source)


def _host(node: Mapping[str, Any], name: str, above: tuple[str, ...], source: str) -> Host:
    unknown = sorted(node.keys() - {"name", "workers", "islands"})
    if unknown or "workers" not in node:
        received = f"an unknown key {unknown[0]!r}" if unknown else "no 'workers'"
        raise ValueError(
            f"A host must have a 'name' and 'workers', and may have 'islands'. Received: {received} in host {name!r} "
            f"of {source}."
        )
    workers = _numbers(node["workers"], f"'workers' of host {name!r}", source)
    if not workers:
        raise ValueError(f"A host must have one worker at least. Received: none in host {name!r} of {source}.")
    islands = node.get("islands")
    if islands is not None:
        if not isinstance(islands, list) or not islands:
            raise ValueError(
                f"'islands' of host {name!r} must be a list of lists of devices. Received: {islands!r} in {source}."
            )
        islands = tuple(_numbers(island, f"An island of host {name!r}", source) for island in islands)
    return Host(name, workers, above, islands)


def _numbers(values: Any, what: str, source: str, at_least: int = 0) -> tuple[int, ...]:
    if not isinstance(values, list) or not all(_is_number(value, at_least) for value in values):
        raise ValueError(f"{what} must be a list of numbers of at least {at_least}. Received: {values!r} in {source}.")
    return tuple(values)


def _is_number(value: Any, at_least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= at_least
