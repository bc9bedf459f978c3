"""Which names and addresses belong to one and the same host."""

import contextlib
import ipaddress
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence

Resolve = Callable[[str], Iterable[str]]

# One for all names together: a name server that does not answer must not keep workers from their start.
RESOLVE_SECONDS = 5.0
_THIS_HOST = "localhost"


def host_of(address: str) -> str:
    """Returns the host of "host:port", without the brackets of IPv6.

    Example:
        >>> host_of("[::1]:2222")
        '::1'
    """
    host = address.rpartition(":")[0]
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def addresses_of(name: str) -> set[str]:
    """Returns the addresses of a host by name; raises an OSError where the name is not known."""
    return {str(info[4][0]) for info in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)}


def same_hosts(
    hosts: Sequence[str], resolve: Resolve | None = addresses_of, *, deadline_seconds: float = RESOLVE_SECONDS
) -> list[str]:
    """Returns, for each of `hosts`, the first of them that is the same machine.

    Names are the same machine where they have an address in common; "localhost", 127.0.0.1, ::1 and names with an
    address of the loopback interface are the machine itself. Other addresses of 127.0.0.0/8 that are written as such
    are hosts of their own, by which one machine can stand for several. A name that is not resolved in time counts as
    itself.

    Example:
        >>> same_hosts(["localhost", "127.0.0.1", "127.0.0.2", "a"], resolve=None)
        ['localhost', 'localhost', '127.0.0.2', 'a']

    Args:
        hosts: names and addresses, without ports and brackets.
        resolve: name -> addresses, raising an OSError or ValueError where it knows none; None compares what is written.
        deadline_seconds: how long to wait for all names together.
    """
    written = {host: _normal(host) for host in dict.fromkeys(hosts)}
    names = sorted({one for one in written.values() if not _is_address(one) and one != _THIS_HOST})
    resolved: dict[str, frozenset[str]] = {}
    if resolve is not None and len(set(written.values())) > 1:
        resolved = _resolved(names, resolve, deadline_seconds)
    position = {host: i for i, host in enumerate(written)}
    first_of: dict[str, str] = {}  # by all that a machine is known by
    for host, one in written.items():
        known_by = {one, *resolved.get(one, ())}
        met = {first_of[name] for name in known_by if name in first_of}
        first = min([*met, host], key=position.__getitem__)
        first_of |= dict.fromkeys(known_by, first)
        if len(met) > 1:  # this host shows that two which seemed apart are one
            first_of |= {name: first for name, other in first_of.items() if other in met}
    return [first_of[written[host]] for host in hosts]


def _resolved(names: Sequence[str], resolve: Resolve, seconds: float) -> dict[str, frozenset[str]]:
    """Returns the addresses of those names that are resolved within `seconds`."""
    found: dict[str, frozenset[str]] = {}

    def look_up(name: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # the name then counts as itself
            found[name] = frozenset(_of_loopback(_normal(address)) for address in resolve(name))

    # The system's look-up cannot be interrupted: threads that are late are left behind.
    threads = [threading.Thread(target=look_up, args=(name,), daemon=True) for name in names]
    for thread in threads:
        thread.start()
    end = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    return dict(found)


def _normal(host: str) -> str:
    """Returns one way of writing a host for all that mean the same without a look-up."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host.lower().removesuffix(".")
    mapped = getattr(address, "ipv4_mapped", None)
    text = str(mapped or address)
    return _THIS_HOST if text in ("127.0.0.1", "::1") else text


def _of_loopback(address: str) -> str:
    # Debian gives 127.0.1.1 to the name of the machine itself.
    return _THIS_HOST if _is_address(address) and ipaddress.ip_address(address).is_loopback else address


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
