"""Kernels: passes over whole gradients that XLA merges."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf


class Kernels:
    """The compiled kernels of one compressor: since shapes are static, one for each nest of shapes."""

    def __init__(self) -> None:
        self._compiled: dict[Any, Any] = {}

    def compiled(self, kernel: Callable[..., Any], operation: str, tensors: Any, *options: Any) -> Callable[..., Any]:
        """Returns `kernel` compiled, once for the same operation, dtypes, shapes and options.

        Args:
            kernel: tensors -> tensors.
            operation: what it does.
            tensors: a nest of what it is given.
            *options: what else it depends on.
        """
        like = tuple((tensor.dtype, tuple(tensor.shape)) for tensor in tf.nest.flatten(tensors))
        key = operation, like, *options
        return self._compiled.setdefault(key, tf.function(kernel, jit_compile=True, autograph=False))

    def num_traces(self) -> dict[Any, int]:
        """Returns how often each kernel has been traced."""
        return {key: kernel.experimental_get_tracing_count() for key, kernel in self._compiled.items()}
