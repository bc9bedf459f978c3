"""Deep gradient compression: the largest elements of what momentum has gathered."""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp.compression import entries as entries_lib
from tfdp.compression.base import Compressor, Group, Reduced, as_text, shared_out, wide
from tfdp.compression.choosing import checked_k, largest_by_sample, magnitudes, num_chosen
from tfdp.compression.entries import Delivered, Entries
from tfdp.compression.kernels import Kernels
from tfdp.compression.momentum import checked_momentum, refuse_momentum

_STAGE_SHARE = 0.25  # of the elements in the first stage of warming up, and of the stage before in each other


def dgc(
    k: float = 0.001, *, momentum: float = 0.9, clip_norm: float | None = None, warm_up_steps: int = 0
) -> Compressor:
    """Returns the compressor that gathers gradients with momentum, and sends the k largest elements of what it has.

    u = momentum x u + gradient, v = v + u; the largest of v are sent as by `top_k`, and u and v are zero where they
    were. So momentum acts before the compression, and the optimizer must have none of its own: use
    `keras.optimizers.SGD(learning_rate)`. What is not sent stays in v: do without `error_feedback`. NaN and infinity
    enter neither. Sparse gradients, and all gradients of a single replica, go as they are: without momentum. For
    variables that are not worth compressing there is `with_momentum`: `by_size(dgc(), otherwise=with_momentum())`.

    Args:
        k: a share of the elements (float, more than 0 and at most 1) or a count (int); at least one is sent.
        momentum: at least 0 and less than 1.
        clip_norm: what the norm of a variable's gradient over all members may be; each member clips its own gradient
            to this divided by the root of their number before it adds it. None does not clip. A gradient here is a
            member's part of the mean over the batch.
        warm_up_steps: updates in which more is sent: a quarter of the elements, then a quarter of that, and so on down
            to k, each for as many steps. The paper has 4 epochs. Where collectives cannot stand in a choice (several
            replicas in one process), messages have the size of the first stage throughout.

    References:
        Lin et al., "Deep Gradient Compression: Reducing the Communication Bandwidth for Distributed Training" (ICLR
        2018), algorithm 4 without Nesterov's momentum, and sections 3.2 and 3.3. The paper clips by the norm of all
        gradients together, which a compressor of some of them does not know; here each is clipped by its own.
    """
    checked_k(k)
    momentum = checked_momentum(momentum)
    is_number = isinstance(clip_norm, int | float) and not isinstance(clip_norm, bool)
    if clip_norm is not None and not (is_number and 0 < clip_norm < float("inf")):
        raise ValueError(f"`clip_norm` must be more than 0 and finite, or None. Received: clip_norm={clip_norm!r}.")
    if isinstance(warm_up_steps, bool) or not isinstance(warm_up_steps, int):
        raise TypeError(f"`warm_up_steps` must be an integer. Received: warm_up_steps={warm_up_steps!r}.")
    if not 0 <= warm_up_steps < 2**31:
        raise ValueError(
            f"`warm_up_steps` must be at least 0 and less than 2**31. Received: warm_up_steps={warm_up_steps}."
        )
    return _DeepGradientCompression(k, momentum, clip_norm, warm_up_steps)


class _DeepGradientCompression(Compressor):
    def __init__(self, k: float, momentum: float, clip_norm: float | None, warm_up_steps: int) -> None:
        self._k, self._momentum, self._clip_norm, self._warm_up_steps = k, momentum, clip_norm, warm_up_steps
        self._kernels = Kernels()

    def init(self, spec: tf.TensorSpec) -> Any:
        dtype = wide(spec.dtype).as_numpy_dtype
        return {
            "momentum": np.zeros(spec.shape, dtype),
            "unsent": np.zeros(spec.shape, dtype),
            "steps": np.int64(0),
        }

    def reduce(self, gradients: Sequence[tf.Tensor], states: Sequence[Any], group: Group, *, name: str) -> Reduced:
        own = entries_lib.whole_gradients(gradients, ())
        if self._clip_norm is not None:
            own = [_clipped(gradient, self._clip_norm * group.size**-0.5) for gradient in own]
        # The paper's u and v.
        momenta = [state["momentum"] * self._momentum + g for state, g in zip(states, own, strict=True)]
        unsent = [state["unsent"] + momentum for state, momentum in zip(states, momenta, strict=True)]
        stages = _stages(self._k, [tensor.shape for tensor in unsent], bool(self._warm_up_steps))
        steps = tf.reduce_min([state["steps"] for state in states])  # those of one bucket may have begun apart
        stage = tf.minimum(steps * (len(stages) - 1) // max(self._warm_up_steps, 1), len(stages) - 1)
        send = functools.partial(self._send, momenta, unsent, gradients[0].dtype, group)
        if len(stages) == 1:
            delivered, left = send(stages[0], None, f"{name} entries")
        elif group.can_branch:
            ways = [
                functools.partial(send, counts, None, f"{name} entries of stage {index}")
                for index, counts in enumerate(stages)
            ]
            delivered, left = tf.switch_case(tf.cast(stage, tf.int32), ways)
        else:
            delivered, left = send(stages[0], tf.gather(tf.constant(stages), stage), f"{name} entries")
        before = [state[part] for part in ("momentum", "unsent") for state in states]
        left = tf.cond(delivered.finite, lambda: left, lambda: before)  # passes tensors on, without a copy
        new = [
            {"momentum": u, "unsent": v, "steps": tf.minimum(state["steps"], max(self._warm_up_steps, 1) - 1) + 1}
            for u, v, state in zip(left[: len(states)], left[len(states) :], states, strict=True)
        ]
        return Reduced(delivered.total, delivered.sent, new, delivered.finite)

    def _send(
        self,
        momenta: Sequence[tf.Tensor],
        unsent: Sequence[tf.Tensor],
        dtype: tf.DType,
        group: Group,
        counts: Sequence[int],
        limits: tf.Tensor | None,
        name: str,
    ) -> tuple[Delivered, list[tf.Tensor]]:
        """Sends so many elements of each gradient; returns also what is left of `momenta` and of `unsent`.

        Args:
            momenta: one for each gradient.
            unsent: one for each gradient.
            dtype: of the gradients.
            group: the members.
            counts: the entries of the message.
            limits: int [number of gradients]: how many of them are not empty; None for all.
            name: what is reduced.
        """
        chosen = [largest_by_sample(self._kernels, tensor, count) for tensor, count in zip(unsent, counts, strict=True)]
        if limits is not None:
            chosen = [_first(part, limit) for part, limit in zip(chosen, tf.unstack(limits), strict=True)]
        shapes = [tensor.shape for tensor in unsent]
        own = entries_lib.as_message(entries_lib.joined(chosen, shapes))
        delivered = entries_lib.deliver(self._kernels, own, dtype, unsent[0].dtype, shapes, group, name=name)
        return delivered, entries_lib.cleared(self._kernels, [*momenta, *unsent], own, counts)

    def merge(self, states: Sequence[Any], num_members: int) -> Any:
        """Hands what all former members have gathered to the new ones in equal parts, so that nothing is lost."""
        parts = {part: shared_out([state[part] for state in states], num_members) for part in ("momentum", "unsent")}
        return {**parts, "steps": states[0]["steps"]}

    def settled(self) -> Compressor:
        if not self._warm_up_steps:
            return self
        return _DeepGradientCompression(self._k, self._momentum, self._clip_norm, 0)

    def check_optimizer(self, optimizer: Any) -> None:
        refuse_momentum(optimizer, self)

    @property
    def has_feedback(self) -> bool:
        return True

    def __repr__(self) -> str:
        clip_norm = "" if self._clip_norm is None else f", clip_norm={as_text(self._clip_norm)}"
        warm_up_steps = f", warm_up_steps={self._warm_up_steps}" if self._warm_up_steps else ""
        return f"dgc(k={self._k!r}, momentum={as_text(self._momentum)}{clip_norm}{warm_up_steps})"


def _stages(k: float, shapes: Sequence[tf.TensorShape], warms_up: bool) -> list[list[int]]:
    """Returns how many elements of each gradient are sent, stage by stage of warming up and then for good."""
    sizes = [shape.num_elements() or 0 for shape in shapes]
    settled = [num_chosen(k, size) for size in sizes]
    stages: list[list[int]] = []
    share = _STAGE_SHARE
    while warms_up and any(share * size > count for size, count in zip(sizes, settled, strict=True)):
        stages.append([max(num_chosen(share, size), count) for size, count in zip(sizes, settled, strict=True)])
        share *= _STAGE_SHARE
    return [*stages, settled]


def _clipped(gradient: tf.Tensor, most: float) -> tf.Tensor:
    """Returns a gradient whose norm is at most `most`; one that is not finite as it is, to be seen."""
    largest = tf.reduce_max(magnitudes(gradient)) if gradient.shape.num_elements() else tf.zeros([], gradient.dtype)
    is_usable = tf.math.is_finite(largest) & (largest > 0)
    scale = tf.where(is_usable, largest, tf.ones([], gradient.dtype))
    scaled = gradient / scale  # no square overflows, nor does the norm
    norm = tf.norm(scaled)
    return tf.where(is_usable & (norm > most / scale), scaled * (most / norm), gradient)


def _first(entries: Entries, limit: tf.Tensor) -> Entries:
    """Returns the `limit` entries of the largest magnitudes, and empty ones up to as many as there were."""
    order = tf.math.top_k(magnitudes(entries.values), entries.values.shape[0]).indices
    is_empty = tf.range(entries.values.shape[0]) >= limit
    values, indices = (tf.gather(part, order) for part in entries)
    return Entries(
        tf.where(is_empty, tf.zeros([], values.dtype), values), tf.where(is_empty, tf.zeros([], indices.dtype), indices)
    )
