"""Full precision in the first steps, when gradients change most."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp.compression.base import Compressor, Group, Reduced, all_finite


def warm_up(compressor: Compressor, *, steps: int) -> Compressor:
    """Returns a compressor that sends gradients as they are in the first `steps` updates of a variable.

    Where the group's collectives cannot stand in a choice (several replicas in one process), both ways are gone in
    every step, and the result of one is used.

    Args:
        compressor: what comes after.
        steps: updates in full precision; 0 leaves `compressor` as it is.
    """
    if not isinstance(compressor, Compressor):
        raise TypeError(f"`compressor` must be a tfdp.compression.Compressor. Received: {compressor!r}.")
    if isinstance(steps, bool) or not isinstance(steps, int):
        raise TypeError(f"`steps` must be an integer. Received: steps={steps!r}.")
    if not 0 <= steps < 2**31:
        raise ValueError(f"`steps` must be at least 0 and less than 2**31. Received: steps={steps}.")
    return _WarmUp(compressor, steps) if steps else compressor


class _WarmUp(Compressor):
    def __init__(self, inner: Compressor, steps: int) -> None:
        self._inner, self._steps = inner, steps
        self._by_inner: dict[int, Compressor] = {}

    def init(self, spec: tf.TensorSpec) -> Any:
        return {"steps": np.int64(0), "inner": self._inner.init(spec)}

    def reduce(self, gradients: Sequence[tf.Tensor], states: Sequence[Any], group: Group, *, name: str) -> Reduced:
        def exact(group: Group) -> tuple[Reduced, list[tf.Tensor]]:
            total = group.sum(gradients, name=f"{name} in full")
            return Reduced(total, list(gradients), _inner(states)), []

        def compressed(group: Group) -> tuple[Reduced, list[tf.Tensor]]:
            return self._inner.reduce(gradients, _inner(states), group, name=name), []

        return self._choose(exact, compressed, states, group)[0]

    def reduce_with_residuals(
        self,
        gradients: Sequence[tf.Tensor],
        residuals: Sequence[tf.Tensor],
        states: Sequence[Any],
        group: Group,
        *,
        name: str,
    ) -> tuple[Reduced, list[tf.Tensor]]:
        def exact(group: Group) -> tuple[Reduced, list[tf.Tensor]]:
            wholes = [tf.cast(g, r.dtype) + r for g, r in zip(gradients, residuals, strict=True)]
            sent = [tf.cast(whole, gradients[0].dtype) for whole in wholes]
            unsent = [whole - tf.cast(part, whole.dtype) for whole, part in zip(wholes, sent, strict=True)]
            return Reduced(group.sum(sent, name=f"{name} in full"), sent, _inner(states)), unsent

        def compressed(group: Group) -> tuple[Reduced, list[tf.Tensor]]:
            result, unsent = self._inner.reduce_with_residuals(gradients, residuals, _inner(states), group, name=name)
            dtype = gradients[0].dtype
            total, sent = ([tf.cast(tensor, dtype) for tensor in part] for part in (result.total, result.sent))
            return result._replace(total=total, sent=sent), unsent

        return self._choose(exact, compressed, states, group)

    def _choose(
        self, exact: Any, compressed: Any, states: Sequence[Any], group: Group
    ) -> tuple[Reduced, list[tf.Tensor]]:
        steps = tf.reduce_min([state["steps"] for state in states])  # those of one bucket may have begun apart

        def checked(way: Any) -> Any:
            result, unsent = way(group)
            finite = all_finite(result.total) if result.finite is None else result.finite
            return tf.nest.map_structure(tf.convert_to_tensor, (result._replace(finite=finite), unsent))

        if group.can_branch:
            result, unsent = tf.cond(steps < self._steps, lambda: checked(exact), lambda: checked(compressed))
        else:
            both = checked(exact), checked(compressed)
            result, unsent = tf.cond(steps < self._steps, lambda: both[0], lambda: both[1])
        new = [
            {"steps": tf.minimum(state["steps"], self._steps - 1) + 1, "inner": inner}
            for state, inner in zip(states, result.states, strict=True)
        ]
        return result._replace(states=new), unsent

    def for_variable(self, spec: tf.TensorSpec) -> Compressor:
        inner = self._inner.for_variable(spec)
        if inner is self._inner:
            return self
        return inner if inner.is_exact else self._by_inner.setdefault(id(inner), _WarmUp(inner, self._steps))

    def merge(self, states: Sequence[Any], num_members: int) -> Any:
        inner = self._inner.merge([state["inner"] for state in states], num_members)
        return {"steps": states[0]["steps"], "inner": inner}

    def check_optimizer(self, optimizer: Any) -> None:
        self._inner.check_optimizer(optimizer)

    def settled(self) -> Compressor:
        return self._inner.settled()

    @property
    def delays(self) -> bool:
        return self._inner.delays

    @property
    def has_feedback(self) -> bool:
        return self._inner.has_feedback

    @property
    def sparse_dtype(self) -> tf.DType | None:
        return self._inner.sparse_dtype

    def __repr__(self) -> str:
        return f"warm_up({self._inner!r}, steps={self._steps})"


def _inner(states: Sequence[Any]) -> list[Any]:
    return [state["inner"] for state in states]
