"""Islands of GPUs, as a library of NVIDIA tells that is none."""

import builtins
import importlib

import pytest

from tfdp.topology import gpu_islands

PCIE_SWITCHES, HOST_BRIDGE, SYSTEM = 20, 30, 50


class FakeNvml:
    """Stands for the module pynvml, with GPUs whose links are told in pairs."""

    class NVMLError(Exception):
        pass

    def __init__(self, num_gpus, *, nvlinks=(), ancestors=None, fails=(), has_p2p=True):
        self.num_gpus, self.nvlinks, self.ancestors = num_gpus, set(nvlinks), ancestors or {}
        self.fails, self.has_p2p, self.num_open = fails, has_p2p, 0

    def _call(self, name):
        if name in self.fails:
            raise self.NVMLError(name)

    def nvmlInit(self):
        self._call("nvmlInit")
        self.num_open += 1

    def nvmlShutdown(self):
        self.num_open -= 1

    def nvmlDeviceGetHandleByIndex(self, index):
        if index >= self.num_gpus:
            raise self.NVMLError("no such GPU")
        return [index]

    def nvmlDeviceGetHandleByUUID(self, uuid):
        return self.nvmlDeviceGetHandleByIndex(int(uuid.removeprefix("GPU-")))

    def nvmlDeviceGetP2PStatus(self, one, other, caps):
        if not self.has_p2p:
            raise self.NVMLError("not supported")
        assert caps == 2
        return 0 if tuple(sorted(one + other)) in self.nvlinks else 5

    def nvmlDeviceGetTopologyCommonAncestor(self, one, other):
        self._call("nvmlDeviceGetTopologyCommonAncestor")
        return self.ancestors.get(tuple(sorted(one + other)), SYSTEM)


def names(num_gpus):
    return [str(index) for index in range(num_gpus)]


def pairs(*gpus):
    return [(one, other) for one in gpus for other in gpus if one < other]


def test_gpus_with_nvlink_between_them_are_one_island():
    nvml = FakeNvml(4, nvlinks=[(0, 2), (1, 3)])
    assert gpu_islands(names(4), nvml=nvml) == ((0, 2), (1, 3))
    assert nvml.num_open == 0


def test_gpus_behind_one_pcie_switch_are_one_island_and_those_behind_the_processor_are_not():
    ancestors = {(0, 1): PCIE_SWITCHES, (2, 3): 0, (1, 2): HOST_BRIDGE}
    assert gpu_islands(names(4), nvml=FakeNvml(4, ancestors=ancestors)) == ((0, 1), (2, 3))
    assert gpu_islands(names(4), nvml=FakeNvml(4, ancestors=ancestors, has_p2p=False)) == ((0, 1), (2, 3))


def test_a_chain_of_links_is_one_island():
    assert gpu_islands(names(4), nvml=FakeNvml(4, nvlinks=[(0, 3), (1, 3)])) == ((0, 1, 3), (2,))


def test_a_switch_of_nvlink_joins_all():
    assert gpu_islands(names(8), nvml=FakeNvml(8, nvlinks=pairs(*range(8)))) == (tuple(range(8)),)


def test_positions_are_those_of_the_visible_gpus():
    nvml = FakeNvml(8, nvlinks=[*pairs(0, 1, 2, 3), *pairs(4, 5, 6, 7)])
    assert gpu_islands(["6", "1", "GPU-4"], nvml=nvml) == ((0, 2), (1,))


@pytest.mark.parametrize("gpus", [[], ["MIG-1c2d"], ["0", "MIG-GPU-8932f937/1/0"], ["9"]])
def test_of_no_gpus_of_parts_of_them_and_of_unknown_ones_nothing_is_known(gpus):
    nvml = FakeNvml(2)
    assert gpu_islands(gpus, nvml=nvml) is None
    assert nvml.num_open == 0


@pytest.mark.parametrize("call", ["nvmlInit", "nvmlDeviceGetTopologyCommonAncestor"])
def test_where_the_library_fails_nothing_is_known(call):
    nvml = FakeNvml(2, fails=[call])
    assert gpu_islands(names(2), nvml=nvml) is None
    assert nvml.num_open == 0


def test_without_the_library_nothing_is_known(monkeypatch):
    def import_module(name):
        assert name == "pynvml"
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", import_module)
    assert gpu_islands(["0"]) is None


def test_the_library_is_imported_only_when_it_is_asked(monkeypatch):
    real = builtins.__import__

    def refuse(name, *args, **kwargs):
        assert name != "pynvml"
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    importlib.reload(importlib.import_module("tfdp.topology.gpus"))
