"""The interface of a compressor."""

import abc
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import tensorflow as tf


class Group(Protocol):
    """What a compressor asks of the group of replicas that it reduces over; `tfdp.collectives.Communicator` is one."""

    size: int
    rank: int

    def sum(self, tensors: Sequence[tf.Tensor], *, name: str) -> list[tf.Tensor]:
        """Returns the sums of `tensors` over all members."""

    def gather(self, tensor: tf.Tensor, *, name: str) -> tf.Tensor:
        """Returns the rows of every member's `tensor`."""


class Reduced(NamedTuple):
    """What a reduction gives one member of the group.

    Attributes:
        total: the sums over all members, in the shapes and dtypes of the gradients; bitwise equal on every member.
        sent: what this member contributed to them after loss. `total` is the sum of all members' `sent`, within the
            rounding of the dtype that travelled.
        states: what the compressor remembers of each gradient.
    """

    total: list[tf.Tensor]
    sent: list[tf.Tensor]
    states: list[Any]


class Compressor(abc.ABC):
    """Reduces gradients over a group of replicas, sending fewer bytes than they hold.

    A compressor keeps nothing itself: its state goes in and comes out, one entry a gradient, so that it can be saved,
    and follows its variable whatever travels beside it.
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

    def __repr__(self) -> str:
        """Says what it is and with which options: workers compare it before they train."""
        return f"{type(self).__name__}()"


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
