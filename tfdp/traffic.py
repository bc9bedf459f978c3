"""What a compressor makes of the bytes of a training step."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfdp.collectives import Communicator
from tfdp.compression import Compressor


class VariableTraffic(NamedTuple):
    """What travels for the gradient of one variable, in one step.

    Attributes:
        path: of the variable.
        shape: of the variable.
        compressor: what reduces its gradient.
        num_bytes: of the gradient.
        wire_bytes: (without compression, with it): bytes that one replica sends, or one host where replicas that share
            one add up first; None where that is another number in each step: of a sparse gradient the rows that were
            used, of a dense one those elements that a compressor like `threshold` picks out.
        state_bytes: memory of what the compressor remembers, on the replica that keeps it; 0 where that is in another
            process.
    """

    path: str
    shape: tuple[int, ...]
    compressor: str
    num_bytes: int
    wire_bytes: tuple[int, int] | None
    state_bytes: int


class CompressionReport(NamedTuple):
    """What compression does to the gradients of a training step; `str` gives a table.

    Attributes:
        variables: one entry for each variable that has had a gradient.
        num_members: between which they travel.
        member: what these are: "replica", "host", ..
    """

    variables: Sequence[VariableTraffic]
    num_members: int
    member: str = "replica"

    @property
    def uncompressed_wire_bytes(self) -> int:
        """Bytes that one member would send in a step without compression, for gradients whose bytes are known."""
        return sum(variable.wire_bytes[0] for variable in self.variables if variable.wire_bytes)

    @property
    def wire_bytes(self) -> int:
        """Bytes that one member sends in a step, for gradients whose bytes are known."""
        return sum(variable.wire_bytes[1] for variable in self.variables if variable.wire_bytes)

    @property
    def state_bytes(self) -> int:
        """Memory of what compressors remember, on one replica, or on all of a host in this process."""
        return sum(variable.state_bytes for variable in self.variables)

    def __str__(self) -> str:
        if self.num_members == 1:
            return f"One {self.member} sends nothing."
        if not self.variables:
            return "No gradients have been reduced yet: train a step first."
        headings = ("variable", "shape", "compressor", "bytes before", "bytes after", "ratio", "state bytes")
        rows = [
            (
                variable.path,
                "x".join(map(str, variable.shape)) or "scalar",
                variable.compressor,
                *(_numbers(*variable.wire_bytes) if variable.wire_bytes else ("varies", "varies", "")),
                f"{variable.state_bytes:,}",
            )
            for variable in self.variables
        ]
        totals = _numbers(self.uncompressed_wire_bytes, self.wire_bytes)
        rows.append(("total", "", "", *totals, f"{self.state_bytes:,}"))
        widths = [max(len(row[column]) for row in [headings, *rows]) for column in range(len(headings))]
        lines = [
            "  ".join(
                cell.ljust(width) if column < 3 else cell.rjust(width)
                for column, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in [headings, *rows]
        ]
        lines.append(f"Bytes that one of {self.num_members} {self.member}s sends in a step.")
        return "\n".join(lines)


def bytes_on_the_wire(
    compressor: Compressor,
    specs: tf.TensorSpec | Sequence[tf.TensorSpec],
    num_members: int,
    *,
    can_exchange: bool = True,
) -> int | None:
    """Returns the bytes that one member of a group sends to reduce gradients, once `compressor` has settled.

    None where they are not the same in each step, since messages follow from the values of gradients.

    The compressor is asked what it would do, in a graph that never runs. A sum of S bytes counts as 2 (N - 1) / N x S,
    a gather as (N - 1) x S, an exchange as (N - 1) / N x S: what the usual ring and pairwise algorithms send.

    Args:
        compressor: what reduces the gradients.
        specs: of one gradient, or of those that travel together.
        num_members: of the group.
        can_exchange: whether the group can send each member a part; see `tfdp.collectives.Communicator`.
    """
    specs = [specs] if isinstance(specs, tf.TensorSpec) else list(specs)
    compressor = compressor.for_variable(specs[0]).settled()
    with tf.Graph().as_default():
        gradients = [tf.zeros(spec.shape, spec.dtype) for spec in specs]
        group = CountingGroup(num_members, can_exchange)
        compressor.reduce(gradients, [compressor.init(spec) for spec in specs], group, name="report")
    return None if group.sent_bytes is None else round(group.sent_bytes)


class CountingGroup(Communicator):
    """A group that counts what its one member hands to it, and gives back tensors of the right shapes.

    Attributes:
        sent_bytes: what the member has sent so far; None once it has sent something of no static shape.
    """

    can_branch = True
    rank = 0

    def __init__(self, size: int, can_exchange: bool = True) -> None:
        self.size, self.can_exchange = size, can_exchange
        self.sent_bytes: float | None = 0.0

    def sum(self, tensors: Sequence[tf.Tensor], *, name: str) -> list[tf.Tensor]:
        self._count(tensors, 2 * (self.size - 1) / self.size)
        return list(tensors)

    def gather(self, tensor: tf.Tensor, *, name: str) -> tf.Tensor:
        self._count([tensor], self.size - 1)
        return tf.concat([tensor] * self.size, axis=0)

    def gather_rows(self, tensor: tf.Tensor, *, name: str, counts: tf.Tensor | None = None) -> tf.Tensor:
        return self.gather(tensor, name=name)

    def exchange(self, tensor: tf.Tensor, *, name: str) -> tf.Tensor:
        self._count([tensor], (self.size - 1) / (self.size if self.can_exchange else 1))
        return tensor

    def _count(self, tensors: Sequence[tf.Tensor], times: float) -> None:
        num_elements = [tensor.shape.num_elements() for tensor in tensors]
        if self.sent_bytes is None or None in num_elements:
            self.sent_bytes = None
        else:
            sizes = [count * tensor.dtype.size for count, tensor in zip(num_elements, tensors, strict=True)]
            self.sent_bytes += sum(sizes) * times


def _numbers(before: int, after: int) -> tuple[Any, ...]:
    return f"{before:,}", f"{after:,}", f"{after / before:.3f}" if before else ""
