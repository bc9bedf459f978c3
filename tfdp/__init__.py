"""Data parallelism for Keras 3 on TensorFlow that gives the result of one device and waits less for the network."""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

__all__ = [
    "MirroredStrategy",
    "MultiWorkerMirroredStrategy",
    "Topology",
    "TopologyAllReduce",
    "__version__",
    "callbacks",
    "compression",
    "data",
]

if TYPE_CHECKING:
    from tfdp import callbacks, compression, data
    from tfdp.strategies import MirroredStrategy, MultiWorkerMirroredStrategy
    from tfdp.topology import Topology
    from tfdp.topology_all_reduce import TopologyAllReduce


def __getattr__(name: str) -> Any:
    # On first use, so that the launcher starts without importing TensorFlow.
    if name in ("MirroredStrategy", "MultiWorkerMirroredStrategy"):
        from tfdp import strategies

        return getattr(strategies, name)
    if name == "Topology":
        from tfdp import topology

        return topology.Topology
    if name == "TopologyAllReduce":
        from tfdp import topology_all_reduce

        return topology_all_reduce.TopologyAllReduce
    if name in ("callbacks", "compression", "data"):
        return importlib.import_module(f"tfdp.{name}")
    raise AttributeError(f"module 'tfdp' has no attribute {name!r}. It has {', '.join(__all__)}.")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
