"""Compressors by the names that users write."""

from typing import Any

from tfdp.compression.base import Compressor
from tfdp.compression.casting import bf16, fp16
from tfdp.compression.identity import none

_BUILDERS = {"none": none, "bf16": bf16, "fp16": fp16}


def get(identifier: Any) -> Compressor:
    """Returns the compressor that `identifier` names.

    Example:
        >>> get("bf16")
        bf16()

    Args:
        identifier: "none", "bf16", "fp16", a `Compressor`, or None for "none".

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
