"""Trees and lists of numbers as text."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Branch:
    """A line of a tree, and what hangs on it."""

    label: str
    children: Sequence["Branch"] = ()


def drawn(tree: Branch) -> str:
    """Returns the lines of a tree.

    Example:
        >>> print(drawn(Branch("host a", [Branch("worker 0"), Branch("worker 1")])))
        host a
        ├── worker 0
        └── worker 1
    """
    return "\n".join(_lines(tree))


def numbers(values: Iterable[int]) -> str:
    """Returns numbers in words, neighbours as ranges.

    Example:
        >>> numbers([0, 1, 2, 5])
        '0-2, 5'
    """
    runs = itertools.groupby(enumerate(sorted(values)), key=lambda pair: pair[1] - pair[0])
    ends = [[value for _, value in run] for _, run in runs]
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in ends)


def counted(number: int, noun: str) -> str:
    """Returns "1 host" or "2 hosts"."""
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _lines(tree: Branch) -> Iterable[str]:
    yield tree.label
    for i, child in enumerate(tree.children):
        last = i == len(tree.children) - 1
        first, *others = _lines(child)
        yield ("└── " if last else "├── ") + first
        yield from (("    " if last else "│   ") + line for line in others)
