"""What makes workers fast and must be in their environment before they start."""

import os
from collections.abc import Mapping

# Keras under any strategy hands work between threads; glibc then returns fresh pages to the system and fetches them
# again at every step, which takes up to half of a step. These keep the pages in the process.
ALLOCATOR_SETTINGS = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": "4000000000",
    "MALLOC_TRIM_THRESHOLD_": "8000000000",
    "MALLOC_TOP_PAD_": "500000000",
}


def fast_settings(*, num_workers: int, num_cores: int, gpus_visible: bool, glibc: bool) -> dict[str, str]:
    """Returns the settings of a worker, for variables that the user did not set.

    Args:
        num_workers: workers that share this machine.
        num_cores: cores they may use together.
        gpus_visible: whether they train on GPUs; TensorFlow then chooses the numbers of its threads itself.
        glibc: whether memory comes from glibc, whose allocator needs taming.

    Example:
        >>> fast_settings(num_workers=2, num_cores=8, gpus_visible=False, glibc=False)["TF_NUM_INTRAOP_THREADS"]
        '4'
    """
    settings = dict(ALLOCATOR_SETTINGS) if glibc else {}
    if not gpus_visible:
        cores_of_worker = max(1, num_cores // num_workers)
        settings["TF_NUM_INTRAOP_THREADS"] = str(cores_of_worker)
        settings["OMP_NUM_THREADS"] = str(cores_of_worker)
        # A collective waits in a thread of this pool; with a single one nothing would run beside it.
        settings["TF_NUM_INTEROP_THREADS"] = str(max(2, cores_of_worker))
    # Warnings and errors stay, TensorFlow's remarks on itself go.
    settings["TF_CPP_MIN_LOG_LEVEL"] = "1"
    return settings


def settings_in_force(settings: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """Returns `settings` with the values that the user chose in `environment` instead of ours."""
    return {name: environment.get(name, value) for name, value in settings.items()}


def printable_settings(settings: Mapping[str, str]) -> list[str]:
    """Returns KEY=VALUE lines that survive `env $(tfdp env) command`.

    A value with blanks would fall apart there. Only a user's own can have any, and it is in force without us.
    """
    return [f"{name}={value}" for name, value in settings.items() if not any(map(str.isspace, value))]


def count_cores() -> int:
    """Returns the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def uses_glibc() -> bool:
    """Tells whether memory of programs on this machine comes from glibc."""
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")
    except (AttributeError, ValueError, OSError):  # musl and macOS do not know the name
        return False
