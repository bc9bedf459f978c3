"""The compressor of a block code, whose messages cannot be summed on their way.

A message between two members goes straight to the other, as it does to all others where a group cannot exchange parts.
Elsewhere, among more members, each member is sent its part of all messages, adds
the decoded parts up, encodes the sum once more and gathers it to all: so the bytes that one member sends do not grow
with the number of members.
"""

import functools
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp.compression import blocks as blocks_lib
from tfdp.compression.base import Compressor, Group, Reduced, all_finite, wide
from tfdp.compression.blocks import BlockCodec, Encoded
from tfdp.compression.kernels import Kernels

_MOST_MEMBERS_OF_ONE_STAGE = 2  # of as many bytes either way, the way with one loss less


def exchanged(codec: BlockCodec, *, name: str) -> Compressor:
    """Returns the compressor that sends gradients in a block code.

    The law `total == sum of sent` holds within the rounding of a sum in float32 (float64 for gradients of float64).
    Among three and more members a sum is encoded a second time: what that loses is missing in what its encoder `sent`.

    Args:
        codec: the code.
        name: how the compressor shows itself, with its options, such as "int8(block_size=256)".
    """
    if not isinstance(codec, BlockCodec):
        raise TypeError(f"`codec` must be a tfdp.compression.BlockCodec. Received: {codec!r}.")
    if codec.bits not in (1, 2, 4, 8):
        raise ValueError(f"The codes of a `BlockCodec` have 1, 2, 4 or 8 bits. Received: bits={codec.bits!r}.")
    blocks_lib.checked_block_size(codec.block_size)
    return _Exchanged(codec, name)


class _Exchanged(Compressor):
    def __init__(self, codec: BlockCodec, name: str) -> None:
        self._codec, self._name = codec, name
        self._kernels = Kernels()

    def init(self, spec: tf.TensorSpec) -> Any:
        del spec
        return {"steps": np.int64(0)} if self._codec.is_stochastic else ()

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
        like = gradients[0].dtype, [gradient.shape for gradient in gradients]
        in_one_stage = group.size <= _MOST_MEMBERS_OF_ONE_STAGE or not group.can_exchange
        multiple = 1 if in_one_stage else group.size
        filled = blocks_lib.num_filled(like[1], self._codec.block_size, multiple)
        random = self._random(states, group, name, 1, len(filled))
        own, unsent = self._encode(gradients, residuals, random, multiple=multiple)
        sent = self._decode(own, 1, *like)
        message = own
        if not in_one_stage:
            words = group.exchange(blocks_lib.as_words(own, group.size), name=f"{name} parts")
            parts = blocks_lib.from_words(self._codec, words, own.scales.dtype)
            own_filled = np.split(filled, group.size)[group.rank]
            random = self._random(states, group, f"{name} sum", 2, len(own_filled))
            message, lost = self._encode_sum(parts, group.size, own_filled, random)
            before_and_after = [[lost.shape[0] * group.rank, lost.shape[0] * (group.size - 1 - group.rank)], [0, 0]]
            losses = blocks_lib.from_blocks(tf.pad(lost, before_and_after), like[1])
            sent = [tensor - tf.cast(loss, tensor.dtype) for tensor, loss in zip(sent, losses, strict=True)]
            unsent = [tensor + loss for tensor, loss in zip(unsent, losses, strict=False)]
        words = group.gather(blocks_lib.as_words(message, 1), name=f"{name} codes")
        words = tf.ensure_shape(words, [group.size, None])
        arrived = blocks_lib.from_words(self._codec, words, message.scales.dtype)
        total = self._decode(arrived, group.size if in_one_stage else 1, *like)
        states = [{"steps": state["steps"] + 1} for state in states] if self._codec.is_stochastic else list(states)
        return Reduced(total, sent, states, self._all_finite(total, arrived.scales, group.size)), unsent

    def _random(self, states: Sequence[Any], group: Group, name: str, stage: int, num_blocks: int) -> tf.Tensor | None:
        """Returns random numbers that follow from the step, the gradients, the member and the stage."""
        if not self._codec.is_stochastic:
            return None
        who = zlib.crc32(f"{name} of member {group.rank}, stage {stage}".encode()) & 0x7FFFFFFF
        seed = tf.stack([tf.cast(states[0]["steps"], tf.int32), who])
        return blocks_lib.random_numbers(num_blocks, self._codec.block_size, seed)

    def _all_finite(self, total: Sequence[tf.Tensor], scales: tf.Tensor, num_members: int) -> tf.Tensor:
        """Returns whether all of `total` is finite; looks at its elements only where the scales do not tell."""
        # Half of it: sums may round up.
        largest = float(total[0].dtype.max) / (2 * num_members * self._codec.symbol_of_infinity)
        in_range = tf.reduce_all(scales <= tf.constant(min(largest, float(scales.dtype.max)), scales.dtype))
        return tf.cond(in_range, lambda: tf.constant(True), lambda: all_finite(total))

    # Each a kernel.

    def _encode(
        self, gradients: Sequence[tf.Tensor], residuals: Sequence[tf.Tensor], random: tf.Tensor | None, *, multiple: int
    ) -> tuple[Encoded, list[tf.Tensor]]:
        """Returns the code of gradients plus residuals, and what it leaves of each sum where there are residuals."""
        dtype = wide(gradients[0].dtype)

        def kernel(gradients: Any, residuals: Any, random: Any) -> Any:
            wholes = [tf.cast(gradient, dtype) for gradient in gradients]
            wholes = [w + r for w, r in zip(wholes, residuals, strict=True)] if residuals else wholes
            blocks = blocks_lib.as_blocks(wholes, self._codec.block_size, multiple)
            filled = blocks_lib.num_filled([w.shape for w in wholes], self._codec.block_size, multiple)
            encoded, meant = blocks_lib.encode(self._codec, blocks, filled, random)
            shapes = [gradient.shape for gradient in gradients] if residuals else []
            return encoded, blocks_lib.from_blocks(blocks - meant, shapes)

        return self._kernels.compiled(kernel, "encode", gradients, bool(residuals), multiple)(
            list(gradients), list(residuals), random
        )

    def _encode_sum(
        self, parts: Encoded, num_members: int, filled: np.ndarray, random: tf.Tensor | None
    ) -> tuple[Encoded, tf.Tensor]:
        """Returns the code of the sum of what all members sent, and what it loses of it."""

        def kernel(parts: Encoded, random: Any) -> Any:
            total = self._sum_of(parts, num_members)
            total = blocks_lib.without_padding(total, filled)
            encoded, meant = blocks_lib.encode(self._codec, total, filled, random)
            return encoded, total - meant

        return self._kernels.compiled(kernel, "encode sum", parts, num_members, filled.tobytes())(parts, random)

    def _decode(
        self, encoded: Encoded, num_members: int, dtype: tf.DType, shapes: Sequence[tf.TensorShape]
    ) -> list[tf.Tensor]:
        """Returns the sum of what the members sent, in `dtype` and `shapes`."""

        def kernel(encoded: Encoded) -> Any:
            total = self._sum_of(encoded, num_members)
            return [tf.cast(tensor, dtype) for tensor in blocks_lib.from_blocks(total, shapes)]

        return self._kernels.compiled(kernel, "decode", encoded, num_members, dtype, tuple(map(tuple, shapes)))(encoded)

    def _sum_of(self, encoded: Encoded, num_members: int) -> tf.Tensor:
        """Returns the sum of the members' parts of [num_members * n, block_size], in the order of the members."""
        parts = zip(tf.split(encoded.codes, num_members), tf.split(encoded.scales, num_members), strict=True)
        first, *others = (blocks_lib.decode(self._codec, Encoded(*part)) for part in parts)
        return functools.reduce(tf.add, others, first)

    @property
    def delays(self) -> bool:
        return self._codec.bits == 1

    def __repr__(self) -> str:
        return self._name
