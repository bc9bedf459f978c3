"""Compressors that send the largest elements of a gradient with their positions."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdp.compression import entries as entries_lib
from tfdp.compression.base import Compressor, Group, Reduced
from tfdp.compression.choosing import checked_k, largest, largest_by_sample, num_chosen
from tfdp.compression.entries import Entries
from tfdp.compression.kernels import Kernels


def top_k(k: float = 0.01) -> Compressor:
    """Returns the compressor that sends about the k largest elements of each gradient, 8 bytes each, and never more.

    What is large is estimated from a sample, where a gradient is large enough for one; `exact_top_k` does without, and
    takes several times as long. Use it with `error_feedback`: most of a gradient is not sent. Messages are gathered, so
    the bytes that one member sends grow with the number of members.

    Args:
        k: a share of the elements (float, more than 0 and at most 1) or a count (int); at least one is sent.

    References:
        Aji and Heafield, "Sparse Communication for Distributed Gradient Descent" (EMNLP 2017); Lin et al., "Deep
        Gradient Compression" (ICLR 2018), for the sample, with a stride instead of random elements.
    """
    kernels = Kernels()
    return _TopK(checked_k(k), functools.partial(largest_by_sample, kernels), kernels, "top_k")


def exact_top_k(k: float = 0.01) -> Compressor:
    """Returns the compressor that sends the k largest elements of each gradient; of equal ones, the first.

    See `top_k`, which is several times as fast.

    Args:
        k: a share of the elements (float, more than 0 and at most 1) or a count (int); at least one is sent.
    """
    return _TopK(checked_k(k), largest, Kernels(), "exact_top_k")


class _TopK(Compressor):
    def __init__(self, k: float, choose: Callable[[tf.Tensor, int], Entries], kernels: Kernels, name: str) -> None:
        self._k, self._choose, self._kernels, self._name = k, choose, kernels, name

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
        own, wholes, counts = self._encode(gradients, residuals)
        shapes = [gradient.shape for gradient in gradients]
        delivered = entries_lib.deliver(
            self._kernels, own, gradients[0].dtype, wholes[0].dtype, shapes, group, name=f"{name} entries"
        )
        unsent = entries_lib.cleared(self._kernels, wholes, own, counts) if residuals else []
        return Reduced(delivered.total, delivered.sent, list(states), delivered.finite), unsent

    def _encode(
        self, gradients: Sequence[tf.Tensor], residuals: Sequence[tf.Tensor]
    ) -> tuple[tf.Tensor, list[tf.Tensor], list[int]]:
        """Returns the message, what it is of, and how many of its entries are of each gradient."""
        wholes = entries_lib.whole_gradients(gradients, residuals)
        counts = [num_chosen(self._k, int(whole.shape.num_elements())) for whole in wholes]
        chosen = [self._choose(whole, count) for whole, count in zip(wholes, counts, strict=True)]
        own = entries_lib.joined(chosen, [whole.shape for whole in wholes])
        return entries_lib.as_message(own), wholes, counts

    @property
    def delays(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"{self._name}(k={self._k!r})"
