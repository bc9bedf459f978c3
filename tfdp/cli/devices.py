"""Which NVIDIA GPUs there are for the workers of this machine, found without loading CUDA."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from tfdp.cli.errors import LaunchError


def visible_gpus(environment: Mapping[str, str], device_folder: Path = Path("/dev")) -> tuple[str, ...]:
    """Returns the GPUs that a program may use, as CUDA_VISIBLE_DEVICES names them.

    Args:
        environment: variables by name; CUDA_VISIBLE_DEVICES decides where it is set.
        device_folder: where the driver keeps nvidia0, nvidia1, ..
    """
    chosen = environment.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        num_gpus = sum(bool(re.fullmatch(r"nvidia\d+", path.name)) for path in device_folder.glob("nvidia*"))
        # CUDA counts from 0 whatever the numbers of the device files are: a container may see nvidia3 alone.
        return tuple(str(index) for index in range(num_gpus))
    gpus: list[str] = []
    for name in chosen.split(","):
        name = name.strip()
        # CUDA takes the list up to the first entry that is no device.
        if not re.fullmatch(r"\d+|(GPU|MIG)-.+", name):
            break
        gpus.append(name)
    return tuple(gpus)


def check_gpus(gpus: Sequence[str], *, num_workers: int, devices_per_worker: int | None) -> None:
    """Raises a LaunchError where there are GPUs, but too few for every worker to have its own."""
    needed = num_workers * (devices_per_worker or 0)
    if gpus and needed > len(gpus):
        raise LaunchError(
            f"{num_workers} workers with {devices_per_worker} devices each need {needed} GPUs. Received: {len(gpus)} "
            f"visible GPUs ({', '.join(gpus)}). Lower `-n` or `--devices-per-worker`, or set CUDA_VISIBLE_DEVICES='' "
            "to train on the CPU."
        )


def gpus_of_worker(gpus: Sequence[str], rank: int, devices_per_worker: int) -> tuple[str, ...]:
    """Returns the GPUs of one worker: the slice of `gpus` that no other worker has.

    Example:
        >>> gpus_of_worker(["0", "1", "2", "3"], rank=1, devices_per_worker=2)
        ('2', '3')
    """
    return tuple(gpus[rank * devices_per_worker : (rank + 1) * devices_per_worker])
