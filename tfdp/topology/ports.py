"""The ports on which workers listen that were started without TF_CONFIG: all of them must come to the same ones."""

import re
import zlib
from collections.abc import Mapping, Sequence

# Below the ports that Linux hands out for outgoing connections, which begin at 32768.
FIRST_PORT = 10000
PORTS_PER_JOB = 64
NUM_SLOTS = 352


def addresses(hosts: Sequence[str], base: int) -> list[str]:
    """Returns "host:port" of each worker: those of one host get ports one after the other.

    Example:
        >>> addresses(["a", "a", "b"], base=10000)
        ['a:10000', 'a:10001', 'b:10000']

    Args:
        hosts: the host of each worker, by rank.
        base: the port of the first worker on each host.

    Raises:
        ValueError: `base` is too high for so many workers.
    """
    found: list[str] = []
    num_taken: dict[str, int] = {}
    for host in hosts:
        found.append(f"{host}:{base + num_taken.get(host, 0)}")
        num_taken[host] = num_taken.get(host, 0) + 1
    most = max(num_taken.values(), default=0)
    if base + most - 1 > 65535:
        raise ValueError(
            f"Ports must be below 65536. Received: {base + most - 1}, as the {most} workers of a host begin at {base}. "
            "Set a lower TFDP_PORT_BASE."
        )
    return found


def port_base(environment: Mapping[str, str], *, job: int, step: int = 0) -> int:
    """Returns the port of the first worker on each host: TFDP_PORT_BASE, or what follows from the job.

    That is 10000 + 64 * ((job + 37 * step) mod 352), so that jobs and steps which share a host seldom meet.

    Example:
        >>> port_base({}, job=1000, step=1)
        31312

    Raises:
        ValueError: TFDP_PORT_BASE is no port.
    """
    chosen = environment.get("TFDP_PORT_BASE", "").strip()
    if not chosen:
        return FIRST_PORT + PORTS_PER_JOB * ((job + 37 * step) % NUM_SLOTS)
    if not re.fullmatch("[0-9]{1,5}", chosen) or not 0 < int(chosen) < 65536:
        raise ValueError(f"TFDP_PORT_BASE must be a port, from 1 to 65535. Received: TFDP_PORT_BASE={chosen!r}.")
    return int(chosen)


def number_of_name(name: str) -> int:
    """Returns a number for a job that has a name instead, the same on all workers; 0 for none."""
    return zlib.crc32(name.encode())
