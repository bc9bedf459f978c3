"""Momentum that compression adds, for optimizers that have none."""

import logging
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp.compression.base import Compressor, Group, Reduced, all_finite, as_text, wide

_LOG = logging.getLogger("tfdp")


def with_momentum(momentum: float = 0.9) -> Compressor:
    """Returns the compressor that sends gradients as they are and hands on their momentum.

    It stands beside `dgc` for the variables that are not worth compressing: where the optimizer has no momentum, they
    would have none. m = momentum x m + sum of gradients, the same on all members. In float32 (float64 for gradients of
    float64).

    Args:
        momentum: at least 0 and less than 1.

    Reference:
        Polyak, "Some methods of speeding up the convergence of iteration methods" (1964), as in
        `keras.optimizers.SGD`, whose velocity holds the learning rate too.
    """
    return _WithMomentum(checked_momentum(momentum))


class _WithMomentum(Compressor):
    def __init__(self, momentum: float) -> None:
        self._momentum = momentum

    def init(self, spec: tf.TensorSpec) -> Any:
        return {"momentum": np.zeros(spec.shape, wide(spec.dtype).as_numpy_dtype)}

    def reduce(self, gradients: Sequence[tf.Tensor], states: Sequence[Any], group: Group, *, name: str) -> Reduced:
        dtype = gradients[0].dtype
        kept = [state["momentum"] * self._momentum for state in states]
        sums = group.sum(gradients, name=name)
        momenta = [tf.cast(part, m.dtype) + m for part, m in zip(sums, kept, strict=True)]
        total = [tf.cast(m, dtype) for m in momenta]
        sent = [tf.cast(tf.cast(g, m.dtype) + m / group.size, dtype) for g, m in zip(gradients, kept, strict=True)]
        finite = all_finite(total)
        before = [tf.convert_to_tensor(state["momentum"]) for state in states]
        momenta = tf.cond(finite, lambda: momenta, lambda: before)  # passes tensors on, without a copy
        return Reduced(total, sent, [{"momentum": m} for m in momenta], finite)

    def merge(self, states: Sequence[Any], num_members: int) -> Any:
        """Returns the state that all former members share."""
        del num_members
        return states[0]

    def check_optimizer(self, optimizer: Any) -> None:
        refuse_momentum(optimizer, self)

    @property
    def has_feedback(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"with_momentum({as_text(self._momentum)})"


def checked_momentum(momentum: float) -> float:
    """Returns `momentum`, or raises what is wrong with it."""
    if isinstance(momentum, bool) or not isinstance(momentum, int | float) or not 0 <= momentum < 1:
        raise ValueError(f"`momentum` must be at least 0 and less than 1. Received: momentum={momentum!r}.")
    return float(momentum)


def refuse_momentum(optimizer: Any, compressor: Compressor) -> None:
    """Raises a ValueError for an optimizer with momentum, which `compressor` has already."""
    optimizer = _innermost(optimizer)
    for option in ("momentum", "beta_1"):
        value = getattr(optimizer, option, None)
        if value:
            raise ValueError(
                f"{compressor!r} adds momentum before it sends, so the optimizer must have none of its own. Received: "
                f"{type(optimizer).__name__} with {option}={value!r}. Use keras.optimizers.SGD(learning_rate), and "
                "set the momentum of the compressor."
            )


def warn_of_momentum(optimizer: Any, compressor: Compressor, *, known: weakref.WeakSet[Any]) -> None:
    """Warns of the momentum of an optimizer that has second moments too, where gradients arrive late.

    Args:
        optimizer: that gets the gradients.
        compressor: which delays them.
        known: the optimizers that were warned of; this one joins them.
    """
    optimizer = _innermost(optimizer)
    beta_1 = getattr(optimizer, "beta_1", None)
    if beta_1 and hasattr(optimizer, "beta_2") and optimizer not in known:
        known.add(optimizer)
        _LOG.warning(
            "tfdp: under %r most of a gradient arrives some steps late. The momentum of %s (beta_1=%r) then costs "
            "quality or many more steps, where beta_1=0 cost little: see docs/convergence.md.",
            compressor,
            type(optimizer).__name__,
            beta_1,
        )


def _innermost(optimizer: Any) -> Any:
    while hasattr(optimizer, "inner_optimizer"):  # keras.optimizers.LossScaleOptimizer
        optimizer = optimizer.inner_optimizer
    return optimizer
