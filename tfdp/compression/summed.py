"""The compressor of a codec whose messages can be summed as they are."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdp.compression.base import Codec, Compressor, Group, Reduced


def summed(codec: Codec, *, name: str, sparse_dtype: tf.DType | None = None) -> Compressor:
    """Returns the compressor that encodes each gradient, sums the messages on their way and decodes the sums.

    The law `total == sum of sent` holds within the rounding of the partial sums in `codec.dtype`: with R replicas at
    most R - 1 roundings, each of half a unit in the last place of the partial sum.

    Args:
        codec: messages must be tensors of one dtype that collectives can add.
        name: how the compressor shows itself, with its options, such as "bf16()".
        sparse_dtype: in which dtype the values of sparse gradients travel; None as they are.
    """
    if not isinstance(codec, Codec):
        raise TypeError(f"`codec` must be a tfdp.compression.Codec. Received: {codec!r}.")
    return _Summed(codec, name, sparse_dtype)


class _Summed(Compressor):
    def __init__(self, codec: Codec, name: str, sparse_dtype: tf.DType | None) -> None:
        self._codec, self._name, self._sparse_dtype = codec, name, sparse_dtype

    @property
    def sparse_dtype(self) -> tf.DType | None:
        return self._sparse_dtype

    def reduce(self, gradients: Sequence[tf.Tensor], states: Sequence[Any], group: Group, *, name: str) -> Reduced:
        dtype = gradients[0].dtype
        if dtype.size <= self._codec.dtype.size:  # nothing to win: as small already
            return Reduced(group.sum(gradients, name=name), list(gradients), list(states))
        messages = [self._codec.encode(gradient, group.size) for gradient in gradients]
        sums = group.sum(messages, name=name)
        total = [self._codec.decode(message, group.size, dtype) for message in sums]
        sent = [self._codec.decode(message, group.size, dtype) for message in messages]
        return Reduced(total, sent, list(states))

    def __repr__(self) -> str:
        return self._name
