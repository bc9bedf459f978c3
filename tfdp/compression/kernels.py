"""Kernels that a compressor keeps, compiled for the shapes that it has met."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf


class WithKernels:
    """Keeps kernels: passes over whole gradients that XLA merges. Their shapes are static, so each has its own."""

    def __init__(self) -> None:
        self._kernels: dict[Any, Callable[..., Any]] = {}

    def _compiled(self, kernel: Callable[..., Any], operation: str, tensors: Any, *options: Any) -> Callable[..., Any]:
        """Returns the compiled `kernel` of an earlier call that was alike, or else this one.

        Args:
            kernel: a function of `tensors`.
            operation: what it does.
            tensors: a nest, of the dtypes and shapes that it will be called with.
            options: what else it depends on.
        """
        like = tuple((tensor.dtype, tuple(tensor.shape)) for tensor in tf.nest.flatten(tensors))
        return self._kernels.setdefault(
            (operation, like, *options), tf.function(kernel, jit_compile=True, autograph=False)
        )
