"""The compressor that sends elements drawn by lot, the same on all members."""

import math
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp.compression import entries as entries_lib
from tfdp.compression.base import Compressor, Group, Reduced, all_finite
from tfdp.compression.choosing import checked_k, num_chosen
from tfdp.compression.entries import Entries
from tfdp.compression.kernels import Kernels


def random_k(k: float = 0.01) -> Compressor:
    """Returns the compressor that sends k elements of each gradient, drawn by lot in each step.

    All members draw the same, so no positions travel, and values are summed on their way: as many bytes whatever the
    number of members. Each element has the same chance. Elements arrive as they are, not multiplied by the inverse of
    their chance, so use it with `error_feedback`. A NaN or infinity anywhere in a member's gradient makes the whole sum
    NaN, since it may not be among the drawn.

    Args:
        k: a share of the elements (float, more than 0 and at most 1) or a count (int); at least one is sent.

    Reference:
        Stich et al., "Sparsified SGD with Memory" (NeurIPS 2018), section 2, with one draw in each of k blocks
        of the elements, of which the first begins anywhere, instead of k draws among all.
    """
    return _RandomK(checked_k(k))


class _RandomK(Compressor):
    def __init__(self, k: float) -> None:
        self._k, self._kernels = k, Kernels()

    def init(self, spec: tf.TensorSpec) -> Any:
        del spec
        return {"steps": np.int64(0)}

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
        counts = [num_chosen(self._k, int(shape.num_elements())) for shape in shapes]
        drawn = []
        for index, (whole, count, state) in enumerate(zip(wholes, counts, states, strict=True)):
            places = positions(int(whole.shape.num_elements()), count, state["steps"], f"{name} gradient {index}")
            drawn.append(Entries(tf.gather(tf.reshape(whole, [-1]), places), places))
        own = entries_lib.joined(drawn, shapes)
        message = tf.concat([own.values, tf.stack([_flag(whole) for whole in wholes])], axis=0)
        (sums,) = group.sum([message], name=name)
        places = entries_lib.as_message(own)
        total, sent = (self._spread(values, places, dtype, shapes, counts) for values in (sums, message))
        unsent = entries_lib.cleared(self._kernels, wholes, places, counts) if residuals else []
        states = [{"steps": state["steps"] + 1} for state in states]
        return Reduced(total, sent, states, all_finite([tf.cast(sums, dtype)])), unsent

    def _spread(
        self,
        message: tf.Tensor,
        places: tf.Tensor,
        dtype: tf.DType,
        shapes: Sequence[tf.TensorShape],
        counts: Sequence[int],
    ) -> list[tf.Tensor]:
        """Returns the values of a message where they belong, and NaN in all of a gradient that is flagged."""

        def kernel(message: tf.Tensor, places: tf.Tensor) -> list[tf.Tensor]:
            indices = tf.split(entries_lib.from_message(places, message.dtype).indices[0], list(counts))
            *values, flags = tf.split(tf.cast(message, dtype), [*counts, len(counts)])
            tensors, begin = [], 0
            for shape, *part, flag in zip(shapes, values, indices, tf.unstack(flags), strict=True):
                size = int(shape.num_elements())
                flat = tf.tensor_scatter_nd_update(
                    tf.fill([size], flag), part[1][:, tf.newaxis] - begin, part[0] + flag
                )
                tensors.append(tf.reshape(flat, shape))
                begin += size
            return tensors

        options = dtype, tuple(map(tuple, shapes)), tuple(counts)
        return self._kernels.compiled(kernel, "spread", [message, places], *options)(message, places)

    @property
    def delays(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"random_k(k={self._k!r})"


def positions(num_elements: int, k: int, steps: tf.Tensor, name: str) -> tf.Tensor:
    """Returns k different positions, int32 [k]: each of `num_elements` has the same chance to be one of them.

    Args:
        num_elements: to draw from.
        k: to draw; at most `num_elements`.
        steps: int64, and
        name: from which the positions follow.
    """
    if k == num_elements:
        return tf.range(k)
    seed = tf.stack([tf.cast(steps, tf.int32), zlib.crc32(name.encode()) & 0x7FFFFFFF])
    bits = tf.random.stateless_uniform([k + 1], seed, None, None, tf.int64)  # so many that the remainder has no bias
    block = num_elements // k
    begins = tf.range(k, dtype=tf.int64) * block
    places = begins + tf.math.floormod(bits[1:], block) + tf.math.floormod(bits[0], num_elements)
    return tf.cast(tf.math.floormod(places, num_elements), tf.int32)


def _flag(tensor: tf.Tensor) -> tf.Tensor:
    """Returns what makes a sum NaN if something of `tensor` is not finite, and otherwise leaves it as it is."""
    return tf.where(all_finite([tensor]), tf.zeros([], tensor.dtype), tf.constant(math.nan, tensor.dtype))
