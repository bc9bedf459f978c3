"""Compressors by the names that users write."""

from collections.abc import Callable
from typing import Any

from tfdp.compression.base import Compressor
from tfdp.compression.casting import bf16, fp16
from tfdp.compression.feedback import error_feedback
from tfdp.compression.float8 import e4m3, e5m2
from tfdp.compression.identity import none
from tfdp.compression.quantizing import int4, int8, natural, qsgd, tern_grad
from tfdp.compression.selecting import by_shape, by_size
from tfdp.compression.signs import sign


def _of_kernels(compressor: Compressor) -> Compressor:
    """Returns a compressor of what is large and has two axes and more: not of biases and the scales of norms."""
    return by_size(by_shape(compressor))


_BUILDERS: dict[str, Callable[[], Compressor]] = {
    "none": none,
    "bf16": bf16,
    "fp16": fp16,
    "e4m3": lambda: _of_kernels(error_feedback(e4m3())),
    "e5m2": lambda: _of_kernels(error_feedback(e5m2())),
    "int8": lambda: _of_kernels(error_feedback(int8())),
    "int4": lambda: _of_kernels(error_feedback(int4())),
    "sign": lambda: _of_kernels(error_feedback(sign())),
    "qsgd": lambda: _of_kernels(qsgd()),
    "tern_grad": lambda: _of_kernels(tern_grad()),
    "natural": lambda: _of_kernels(natural()),
}


def get(identifier: Any) -> Compressor:
    """Returns the compressor that `identifier` names.

    The names of compressors with a bias give them with error feedback, and all but "bf16" and "fp16" leave biases, the
    scales of norms and small kernels (of less than 1024 elements) as they are.

    Example:
        >>> get("bf16")
        bf16()
        >>> get("sign")
        by_size(by_shape(error_feedback(sign(block_size=1024)), min_rank=2), min_elements=1024)

    Args:
        identifier: "none", "bf16", "fp16", "e4m3", "e5m2", "int8", "int4", "sign", "qsgd", "tern_grad", "natural", a
            `Compressor`, or None for "none".

    Raises:
        ValueError: the name is unknown.
        TypeError: `identifier` is neither a name nor a compressor.
    """
    if isinstance(identifier, Compressor):
        return identifier
    if identifier is None:
        return none()
    if not isinstance(identifier, str):
        raise TypeError(
            f"`compression` must be one of {_names()} or a tfdp.compression.Compressor. Received: {identifier!r} "
            f"of type {type(identifier).__name__}."
        )
    if identifier not in _BUILDERS:
        raise ValueError(f"`compression` must be one of {_names()}. Received: {identifier!r}.")
    return _BUILDERS[identifier]()


def _names() -> str:
    return ", ".join(repr(name) for name in _BUILDERS)
