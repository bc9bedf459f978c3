"""Which GPUs of this host have fast links to each other, as NVIDIA's management library tells."""

import importlib
from collections.abc import Iterator, Sequence
from typing import Any

# Of nvml.h: GPUs whose nearest common ancestor is at most this far have only PCIe switches between them.
_TOPOLOGY_MULTIPLE = 20
_P2P_CAPS_INDEX_NVLINK = 2
_P2P_STATUS_OK = 0


def gpu_islands(gpus: Sequence[str], *, nvml: Any = None) -> tuple[tuple[int, ...], ...] | None:
    """Returns groups of GPUs that reach each other over NVLink or PCIe switches, without the processor in between.

    Two GPUs are in one island where a chain of such links connects them.

    Args:
        gpus: numbers, or UUIDs such as "GPU-8932f937..", as in CUDA_VISIBLE_DEVICES. Numbers count in the order of the
            PCIe bus.
        nvml: the module pynvml; None imports it.

    Returns:
        Positions in `gpus`; None where nothing is known: without nvidia-ml-py (`pip install "tfdp[gpu]"`), without its
        driver, for parts of GPUs (MIG), and where the library fails.
    """
    if not gpus or any(gpu.startswith("MIG-") for gpu in gpus):
        return None
    if nvml is None:
        try:
            nvml = importlib.import_module("pynvml")
        except ImportError:
            return None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return None
    try:
        handles = [_handle(nvml, gpu) for gpu in gpus]
        linked = [[_are_linked(nvml, one, other) for other in handles] for one in handles]
    except nvml.NVMLError:
        return None
    finally:
        nvml.nvmlShutdown()
    return tuple(_components(linked))


def _handle(nvml: Any, gpu: str) -> Any:
    return nvml.nvmlDeviceGetHandleByIndex(int(gpu)) if gpu.isdecimal() else nvml.nvmlDeviceGetHandleByUUID(gpu)


def _are_linked(nvml: Any, one: Any, other: Any) -> bool:
    if one is other:
        return True
    try:
        # Over switches of NVLink too, where the links of a GPU end at the switch.
        if nvml.nvmlDeviceGetP2PStatus(one, other, _P2P_CAPS_INDEX_NVLINK) == _P2P_STATUS_OK:
            return True
    except nvml.NVMLError:
        pass  # drivers and GPUs without NVLink
    return bool(nvml.nvmlDeviceGetTopologyCommonAncestor(one, other) <= _TOPOLOGY_MULTIPLE)


def _components(linked: Sequence[Sequence[bool]]) -> Iterator[tuple[int, ...]]:
    """Yields the connected parts of a graph, given as a symmetric matrix."""
    left = set(range(len(linked)))
    while left:
        part, border = set(), {min(left)}
        while border:
            part |= border
            border = {j for i in border for j in left if linked[i][j]} - part
        left -= part
        yield tuple(sorted(part))
