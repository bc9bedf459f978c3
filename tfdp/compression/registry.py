"""Compressors by the names that users write."""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from tfdp.compression.base import Compressor
from tfdp.compression.casting import bf16, fp16
from tfdp.compression.deep_gradient import dgc
from tfdp.compression.drawing import random_k
from tfdp.compression.feedback import error_feedback
from tfdp.compression.float8 import e4m3, e5m2
from tfdp.compression.identity import none
from tfdp.compression.low_rank import power_sgd
from tfdp.compression.momentum import with_momentum
from tfdp.compression.quantizing import int4, int8, natural, qsgd, tern_grad
from tfdp.compression.selecting import by_shape, by_size
from tfdp.compression.signs import sign
from tfdp.compression.sparsifying import top_k


def _of_kernels(compressor: Compressor, otherwise: Compressor | None = None) -> Compressor:
    """Returns a compressor of what is large and has two axes and more: not of biases and the scales of norms."""
    return by_size(by_shape(compressor, otherwise=otherwise), otherwise=otherwise)


def _count(text: str) -> int | None:
    """Returns a number of 1 and more that is written in digits; None where there is none."""
    return int(text) if re.fullmatch("[1-9][0-9]{0,17}", text) else None


def _share_or_count(text: str) -> float | int | None:
    """Returns a share above 0 and up to 1, a float, that is written with a point or an exponent, or a count."""
    if re.fullmatch(r"[0-9]*\.[0-9]+|[0-9]+(\.[0-9]+)?e-[0-9]+", text):
        return float(text) if 0 < float(text) <= 1 else None
    return _count(text)


class _Name(NamedTuple):
    """What a name stands for.

    Attributes:
        build: makes the compressor; of a name that may have a number, with or without it.
        number: reads what stands behind "name:", and gives None where that is wrong; None: the name takes no number.
        example: the name with a number.
    """

    build: Callable[..., Compressor]
    number: Callable[[str], float | int | None] | None = None
    example: str = ""


_NAMES: dict[str, _Name] = {
    "none": _Name(none),
    "bf16": _Name(bf16),
    "fp16": _Name(fp16),
    "e4m3": _Name(lambda: _of_kernels(error_feedback(e4m3()))),
    "e5m2": _Name(lambda: _of_kernels(error_feedback(e5m2()))),
    "int8": _Name(lambda: _of_kernels(error_feedback(int8()))),
    "int4": _Name(lambda: _of_kernels(error_feedback(int4()))),
    "sign": _Name(lambda: _of_kernels(error_feedback(sign()))),
    "qsgd": _Name(lambda: _of_kernels(qsgd())),
    "tern_grad": _Name(lambda: _of_kernels(tern_grad())),
    "natural": _Name(lambda: _of_kernels(natural())),
    "topk": _Name(lambda k=0.01: _of_kernels(error_feedback(top_k(k))), _share_or_count, "topk:0.01"),
    "randomk": _Name(lambda k=0.01: _of_kernels(error_feedback(random_k(k))), _share_or_count, "randomk:0.01"),
    # Half as much of it lost more than half a point of accuracy on digits.
    "dgc": _Name(lambda k=0.0018: _of_kernels(dgc(k), with_momentum()), _share_or_count, "dgc:0.001"),
    # Without a choice by size: what power_sgd leaves as it is travels with the rest, in the same sum.
    "powersgd": _Name(lambda rank=4: error_feedback(power_sgd(rank)), _count, "powersgd:4"),
}


def get(identifier: Any) -> Compressor:
    """Returns the compressor that `identifier` names.

    The names of compressors with a bias give them with error feedback, and all but "bf16" and "fp16" leave biases, the
    scales of norms and small kernels (of less than 1024 elements; for "powersgd", of too few rows or columns for its
    rank) as they are.

    Example:
        >>> get("bf16")
        bf16()
        >>> get("sign")
        by_size(by_shape(error_feedback(sign(block_size=1024)), min_rank=2), min_elements=1024)
        >>> get("powersgd:2")
        error_feedback(power_sgd(rank=2, min_compression_rate=2))

    Args:
        identifier: "none", "bf16", "fp16", "e4m3", "e5m2", "int8", "int4", "sign", "qsgd", "tern_grad", "natural",
            "topk", "randomk", "dgc", "powersgd"; a `Compressor`; or None for "none". The last four names may carry
            a number: a share ("topk:0.05") or a count ("topk:100") of the elements that are sent, the rank of
            "powersgd:2".

    Raises:
        ValueError: the name is unknown, or its number is wrong.
        TypeError: `identifier` is neither a name nor a compressor.
    """
    if isinstance(identifier, Compressor):
        return identifier
    if identifier is None:
        return none()
    if not isinstance(identifier, str):
        raise TypeError(
            f"`compression` must be {_names()}, or a tfdp.compression.Compressor. Received: {identifier!r} "
            f"of type {type(identifier).__name__}."
        )
    name, colon, text = identifier.partition(":")
    known = _NAMES.get(name)
    if known and not colon:
        return known.build()
    number = known.number(text) if known and known.number else None
    if known is None or number is None:
        raise ValueError(f"`compression` must be {_names()}. Received: {identifier!r}.")
    return known.build(number)


def _names() -> str:
    examples = ", ".join(repr(known.example) for known in _NAMES.values() if known.number)
    return f"one of {', '.join(map(repr, _NAMES))}, some with a number as in {examples}"
