"""The compressor that sends all elements from a threshold on."""

import functools
import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdp.compression import entries as entries_lib
from tfdp.compression.base import Compressor, Group, Reduced, as_text
from tfdp.compression.choosing import magnitudes
from tfdp.compression.entries import Entries


def threshold(value: float) -> Compressor:
    """Returns the compressor that sends all elements whose magnitude is at least `value`, 8 bytes each.

    How many these are differs between members and steps, so nobody can say beforehand what travels, and messages have
    no static size. `top_k` has one. Use it with `error_feedback`: what lies below is not sent.

    Args:
        value: more than 0; in the units of one member's gradient, which holds its part of the mean over the batch.

    Reference:
        Strom, "Scalable Distributed DNN Training Using Commodity GPU Cloud Computing" (Interspeech 2015),
        with the elements as they are instead of the threshold and their signs.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"`value` must be a number. Received: value={value!r}.")
    if not 0 < value < math.inf:
        raise ValueError(f"`value` must be more than 0 and finite. Received: value={value!r}.")
    return _Threshold(float(value))


class _Threshold(Compressor):
    def __init__(self, value: float) -> None:
        self._value = value

    def reduce(self, gradients: Sequence[tf.Tensor], states: Sequence[Any], group: Group, *, name: str) -> Reduced:
        return self.reduce_with_residuals(gradients, (), states, group, name=name)[0]

    def reduce_with_residuals(
        self,
        gradients: Sequence[tf.Tensor],
        residuals: Sequence[tf.Tensor],
        states: Sequence[Any],
        group: Group,
        *,
        name: str,
    ) -> tuple[Reduced, list[tf.Tensor]]:
        """Does what its base does in fewer passes; () for the residuals asks for none."""
        wholes = entries_lib.whole_gradients(gradients, residuals)
        dtype, shapes = gradients[0].dtype, [whole.shape for whole in wholes]
        masks = [magnitudes(whole) >= tf.cast(self._value, whole.dtype) for whole in wholes]
        chosen = []
        for whole, mask in zip(wholes, masks, strict=True):
            indices = tf.where(tf.reshape(mask, [-1]))[:, 0]
            chosen.append(Entries(tf.gather(tf.reshape(whole, [-1]), indices), indices))
        own = entries_lib.joined(chosen, shapes)
        flat = tf.cast(_sum(own, shapes, group, name=name), dtype)
        zero = tf.zeros([], wholes[0].dtype)
        sent = [tf.cast(tf.where(mask, whole, zero), dtype) for mask, whole in zip(masks, wholes, strict=True)]
        unsent = [tf.where(mask, zero, whole) for mask, whole in zip(masks, wholes, strict=True)] if residuals else []
        return Reduced(entries_lib.split(flat, shapes), sent, list(states)), unsent

    @property
    def delays(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"threshold({as_text(self._value)})"


def _sum(own: Entries, shapes: Sequence[tf.TensorShape], group: Group, *, name: str) -> tf.Tensor:
    """Returns the sum of all members' entries, dense and flat."""
    # No collective of nothing: an entry more, which belongs nowhere.
    own = Entries(tf.pad(own.values, [[0, 1]]), tf.pad(own.indices, [[0, 1]], constant_values=-1))
    counts = group.gather(tf.reshape(tf.size(own.indices), [1]), name=f"{name} counts")
    rows = group.gather_rows(entries_lib.as_rows(own), counts=counts, name=f"{name} entries")
    entries = entries_lib.from_rows(rows, own.values.dtype)
    ends, num_elements = tf.cumsum(counts), sum(shape.num_elements() or 0 for shape in shapes)

    def of_member(member: int) -> tf.Tensor:
        values, indices = (part[ends[member] - counts[member] : ends[member]] for part in entries)
        return tf.math.unsorted_segment_sum(values, indices, num_elements)

    # One member after the other: where several send the same element, all members add in the same order.
    return functools.reduce(tf.add, map(of_member, range(group.size)))
