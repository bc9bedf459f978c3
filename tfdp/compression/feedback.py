"""Error feedback: what one step loses is added to the next."""

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp.compression.base import Compressor, Group, Reduced, all_finite, as_text, shared_out, wide
from tfdp.compression.momentum import warn_of_momentum


def error_feedback(compressor: Compressor, *, decay: float = 1.0) -> Compressor:
    """Returns a compressor that adds to each gradient the residual: what the steps before did not send of it.

    `residual = (gradient + decay * residual) - sent`, by member and variable, in float32 (float64 for gradients of
    float64). It moves on only in steps whose totals are finite, so that no NaN or infinity enters it. With decay 1
    everything is sent in the end: the totals of all steps and the members' residuals add up to the gradients.

    Args:
        compressor: what loses something, and has no feedback of its own.
        decay: in (0, 1]: what is kept of a residual from step to step. Less than 1 forgets old gradients.

    References:
        Seide et al., "1-Bit Stochastic Gradient Descent and its Application to Data-Parallel Distributed Training of
        Speech DNNs" (Interspeech 2014), section 3.2; Karimireddy et al. (ICML 2019), algorithm 2. Gradients are
        corrected, not updates, so that the optimizer stays Keras's.
    """
    if not isinstance(compressor, Compressor):
        raise TypeError(f"`compressor` must be a tfdp.compression.Compressor. Received: {compressor!r}.")
    if isinstance(decay, bool) or not isinstance(decay, int | float) or not 0 < decay <= 1:
        raise ValueError(f"`decay` must be more than 0 and at most 1. Received: decay={decay!r}.")
    if compressor.has_feedback:
        raise ValueError(
            "`compressor` must not add what it has not sent to later gradients itself: use it without "
            f"`error_feedback`. Received: {compressor!r}."
        )
    return _ErrorFeedback(compressor, float(decay))


class _ErrorFeedback(Compressor):
    def __init__(self, inner: Compressor, decay: float) -> None:
        self._inner, self._decay = inner, decay
        self._by_inner: dict[int, Compressor] = {}
        self._warned_of: weakref.WeakSet[Any] = weakref.WeakSet()  # optimizers

    def init(self, spec: tf.TensorSpec) -> Any:
        dtype = wide(spec.dtype).as_numpy_dtype
        return {"residual": np.zeros(spec.shape, dtype), "inner": self._inner.init(spec)}

    def reduce(self, gradients: Sequence[tf.Tensor], states: Sequence[Any], group: Group, *, name: str) -> Reduced:
        before = [state["residual"] for state in states]
        inner = [state["inner"] for state in states]
        weighted = before if self._decay == 1 else [residual * self._decay for residual in before]
        result, residuals = self._inner.reduce_with_residuals(gradients, weighted, inner, group, name=name)
        dtype = gradients[0].dtype
        total, sent = ([tf.cast(tensor, dtype) for tensor in part] for part in (result.total, result.sent))
        finite = result.finite
        if finite is None:
            finite = all_finite(total)
        residuals = tf.cond(finite, lambda: residuals, lambda: before)  # passes tensors on, without a copy
        states = [
            {"residual": residual, "inner": state} for residual, state in zip(residuals, result.states, strict=True)
        ]
        return Reduced(total, sent, states, finite)

    def for_variable(self, spec: tf.TensorSpec) -> Compressor:
        inner = self._inner.for_variable(spec)
        if inner is self._inner:
            return self
        if inner.is_exact:
            return inner
        return self._by_inner.setdefault(id(inner), _ErrorFeedback(inner, self._decay))

    def merge(self, states: Sequence[Any], num_members: int) -> Any:
        """Hands the residuals of all former members to the new ones in equal parts, so that nothing is lost."""
        return {
            "residual": shared_out([state["residual"] for state in states], num_members),
            "inner": self._inner.merge([state["inner"] for state in states], num_members),
        }

    def check_optimizer(self, optimizer: Any) -> None:
        self._inner.check_optimizer(optimizer)
        if self._inner.delays:
            warn_of_momentum(optimizer, self, known=self._warned_of)

    def settled(self) -> Compressor:
        settled = self._inner.settled()
        return self if settled is self._inner else _ErrorFeedback(settled, self._decay)

    @property
    def has_feedback(self) -> bool:
        return True

    @property
    def sparse_dtype(self) -> tf.DType | None:
        return self._inner.sparse_dtype

    def __repr__(self) -> str:
        decay = "" if self._decay == 1 else f", decay={as_text(self._decay)}"
        return f"error_feedback({self._inner!r}{decay})"
