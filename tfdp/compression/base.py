"""The interface of a compressor."""

import abc
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import tensorflow as tf


class Group(Protocol):
    """What a compressor asks of the group of replicas that it reduces over; `tfdp.collectives.Communicator` is one."""

    size: int
    rank: int
    can_branch: bool
    can_exchange: bool

    def sum(self, tensors: Sequence[tf.Tensor], *, name: str) -> list[tf.Tensor]:
        """Returns the sums of `tensors` over all members."""

    def gather(self, tensor: tf.Tensor, *, name: str) -> tf.Tensor:
        """Returns the rows of every member's `tensor`, of one static shape."""

    def gather_rows(self, tensor: tf.Tensor, *, name: str, counts: tf.Tensor | None = None) -> tf.Tensor:
        """Returns the rows of every member's `tensor`, however many each has."""

    def exchange(self, tensor: tf.Tensor, *, name: str) -> tf.Tensor:
        """Returns the row that every member has for this one."""


class Reduced(NamedTuple):
    """What a reduction gives one member of the group.

    Attributes:
        total: the sums over all members, in the shapes and dtypes of the gradients; bitwise equal on every member.
        sent: what this member contributed to them after loss. `total` is the sum of all members' `sent`, within the
            rounding of the dtype that travelled.
        states: what the compressor remembers of each gradient.
        finite: whether all of `total` is finite, a bool scalar; None where the compressor has not looked.
    """

    total: list[tf.Tensor]
    sent: list[tf.Tensor]
    states: list[Any]
    finite: tf.Tensor | None = None


class Compressor(abc.ABC):
    """Reduces gradients over a group of replicas, sending fewer bytes than they hold.

    A compressor keeps nothing itself: its state goes in and comes out, one entry a gradient, so that it can be saved,
    and follows its variable whatever travels beside it. The caller keeps new states only in steps whose totals are all
    finite.
    """

    def init(self, spec: tf.TensorSpec) -> Any:
        """Returns the first state of a gradient like `spec`: a nest of arrays, the same on every member."""
        del spec
        return ()

    @abc.abstractmethod
    def reduce(self, gradients: Sequence[tf.Tensor], states: Sequence[Any], group: Group, *, name: str) -> Reduced:
        """Sums gradients over the group.

        Args:
            gradients: this member's, of one dtype (floating point) and of static shapes.
            states: one for each gradient.
            group: the members to sum over.
            name: what is reduced, the same on all members.
        """

    def reduce_with_residuals(
        self,
        gradients: Sequence[tf.Tensor],
        residuals: Sequence[tf.Tensor],
        states: Sequence[Any],
        group: Group,
        *,
        name: str,
    ) -> tuple[Reduced, list[tf.Tensor]]:
        """Sums gradients and what was lost of earlier ones; returns also what is lost now.

        A compressor that can do this in fewer passes over the gradients than these may have its own way.

        Args:
            gradients: as for `reduce`.
            residuals: float32 or float64, in the shapes of the gradients.
            states: as for `reduce`.
            group: as for `reduce`.
            name: as for `reduce`.
        """
        corrected = [tf.cast(g, r.dtype) + r for g, r in zip(gradients, residuals, strict=True)]
        result = self.reduce(corrected, states, group, name=name)
        return result, [whole - sent for whole, sent in zip(corrected, result.sent, strict=True)]

    def for_variable(self, spec: tf.TensorSpec) -> "Compressor":
        """Returns what reduces the gradient of a variable: combinators choose by its shape, dtype or name.

        Gradients that are reduced by the same object travel together.

        Args:
            spec: the variable's shape, its gradient's dtype, and as its name the variable's path.
        """
        del spec
        return self

    def merge(self, states: Sequence[Any], num_members: int) -> Any:
        """Returns the state of one gradient for every member of a group that goes on where a group of another size was.

        Args:
            states: arrays, one nest for each member of the former group.
            num_members: of the group that goes on.
        """
        del num_members
        return tf.nest.map_structure(_mean_or_first, *states)

    def check_optimizer(self, optimizer: Any) -> None:
        """Raises where an optimizer does not go with this compressor, and warns where one goes badly with it.

        Called for each variable when a training step is traced, before anything is reduced.

        Args:
            optimizer: the Keras optimizer that gets the gradients.

        Raises:
            ValueError: it does what the compressor does already.
        """
        del optimizer

    def settled(self) -> "Compressor":
        """Returns what this compressor is in the long run, after its first steps: what reports are about."""
        return self

    @property
    def is_exact(self) -> bool:
        """Whether nothing is lost, so that there is nothing to feed back."""
        return False

    @property
    def has_feedback(self) -> bool:
        """Whether what is not sent is added to later gradients, so that it must not be added once more."""
        return False

    @property
    def delays(self) -> bool:
        """Whether most of a gradient waits for later steps, where what is lost is fed back."""
        return False

    @property
    def sparse_dtype(self) -> tf.DType | None:
        """In which dtype the values of sparse gradients travel; None as they are."""
        return None

    def __repr__(self) -> str:
        """Says what it is and with which options: workers compare it before they train."""
        return f"{type(self).__name__}()"


def wide(dtype: tf.DType) -> tf.DType:
    """Returns in which dtype what gradients of `dtype` leave is kept and added: float32, float64 for float64."""
    return tf.float64 if dtype == tf.float64 else tf.float32


def as_text(number: float) -> str:
    """Returns a number as workers compare it: all of its digits, and no fraction where there is none."""
    return repr(float(number)).removesuffix(".0")


def describe(compressor: Compressor) -> str:
    """Returns what to compare a compressor by: its text, but not where in memory it is."""
    if type(compressor).__repr__ is object.__repr__:
        return f"{type(compressor).__name__}()"
    return repr(compressor)


def all_finite(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns whether no element of tensors of numbers is NaN or infinite, a bool scalar."""
    parts: list[tf.Tensor] = []
    for tensor in tensors:
        if tensor.dtype.is_complex:
            parts += [tf.math.real(tensor), tf.math.imag(tensor)]
        elif tensor.dtype.is_floating:
            parts.append(tensor)
    return tf.reduce_all([True, *(tf.reduce_all(tf.math.is_finite(part)) for part in parts)])


def shared_out(parts: Sequence[Any], num_members: int) -> Any:
    """Returns the part of each of `num_members` where all get the same and nothing of the former parts is lost.

    Args:
        parts: float arrays of one shape and dtype.
        num_members: who get them.
    """
    dtype = parts[0].dtype
    return np.sum(parts, axis=0, dtype=dtype) / dtype.type(num_members)


def _mean_or_first(*parts: Any) -> Any:
    first = np.asarray(parts[0])
    return np.mean(parts, axis=0, dtype=first.dtype) if np.issubdtype(first.dtype, np.floating) else first


class Codec(NamedTuple):
    """A loss of precision that fits into one message.

    Attributes:
        encode: (gradient, number of members) -> what travels.
        decode: (what arrived, number of members, the gradient's dtype) -> the gradient or the sum of gradients.
        dtype: that of what travels.
    """

    encode: Callable[[tf.Tensor, int], tf.Tensor]
    decode: Callable[[tf.Tensor, int, tf.DType], tf.Tensor]
    dtype: tf.DType
