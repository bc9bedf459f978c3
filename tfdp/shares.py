"""A replica's share of a global batch, and what of a step is weighed by it: losses, gradients and logs."""

import contextlib
import contextvars
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tfdp import tf_seam


class Share(NamedTuple):
    """This replica's part of a global batch.

    Attributes:
        rows: examples of this replica, an int32 scalar.
        total: examples of all replicas.
    """

    rows: tf.Tensor
    total: tf.Tensor


# Of the replica that runs a step of Keras's trainer: its share; the variables that it has written; whether what a loss
# gives will be scaled as a part of a whole; the losses that were scaled and unscaled so far.
current: contextvars.ContextVar[Share | None] = contextvars.ContextVar("share", default=None)
written: contextvars.ContextVar[list[Any] | None] = contextvars.ContextVar("written", default=None)
scaled_later = contextvars.ContextVar("is_scaled_later", default=False)
scaled: contextvars.ContextVar[list[Any] | None] = contextvars.ContextVar("scaled", default=None)
unscaled: contextvars.ContextVar[list[Any] | None] = contextvars.ContextVar("unscaled", default=None)


def rows_of(data: Any) -> tf.Tensor | None:
    """Returns how many rows this replica's part of a batch has, an int32 scalar, or None where it has none to count."""
    leaves = [leaf for leaf in keras.tree.flatten(data) if hasattr(leaf, "shape") and leaf.shape.rank]
    if not leaves:
        return None
    first = leaves[0]
    return tf.cast(first.nrows() if isinstance(first, tf.RaggedTensor) else tf.shape(first)[0], tf.int32)


def sum_over_replicas(value: tf.Tensor) -> tf.Tensor:
    """Returns the sum of what all replicas give."""
    return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, value)


def part_of_mean(value: tf.Tensor, share: Share) -> tf.Tensor:
    """Returns what a mean over this replica's rows adds to the mean over all."""
    return value * tf.cast(share.rows, value.dtype) / tf.cast(share.total, value.dtype)


def mean_of_part(part: tf.Tensor, share: Share) -> tf.Tensor:
    """Returns the mean over this replica's rows that adds `part` to the mean over all."""
    return part * tf.cast(share.total, part.dtype) / tf.cast(tf.maximum(share.rows, 1), part.dtype)


def scale_by_share(original: Callable[..., Any], value: Any) -> Any:
    """Returns a mean over this replica's rows as its part of that of all; what `original` does outside of a step."""
    share = current.get()
    if share is None:
        return original(value)
    if scaled_later.get():
        return value
    return noted_scaled(part_of_mean(value, share))


def unscale_by_share(original: Callable[..., Any], value: Any) -> Any:
    """Returns the mean over this replica's rows whose part `value` is; what `original` does outside of a step."""
    share = current.get()
    if share is None:
        return original(value)
    if value.shape.rank:  # a loss that is not reduced: its gradient is that of a sum, and shown is a mean
        value = tf.reduce_mean(value)
    elif not scaled_later.get():
        value = mean_of_part(value, share)
    value = tf.where(share.rows > 0, value, tf.zeros([], value.dtype))
    return noted(unscaled, value)


def as_mean(part: Any) -> Any:
    """Returns this replica's part of a sum; as a mean over its rows where that will be scaled."""
    share = current.get()
    if share is None or not scaled_later.get():
        return part
    return mean_of_part(part, share)


def update_mean(original: Callable[..., Any], metric: Any, values: Any, sample_weight: Any = None) -> Any:
    """Weighs the loss of one output by its replica's share where Keras counts each batch once, of any size."""
    share = current.get()
    if share is not None and isinstance(values, tf.Tensor):
        is_scaled = is_made_of(values, scaled.get() or [])
        if is_scaled:  # a user's own step keeps it as it is
            values = mean_of_part(values, share)
        if sample_weight is None and (is_scaled or any(values is one for one in unscaled.get() or ())):
            sample_weight = tf.cast(share.rows, tf.float32) / tf.cast(share.total, tf.float32)
    return original(metric, values, sample_weight)


def without_rows_nothing(gradients: Sequence[Any]) -> list[Any]:
    """Returns the gradients; zeros on a replica without rows, where they may be NaN."""
    share = current.get()
    if share is None:
        return list(gradients)
    # A choice, not a product: it passes on the tensors that are there, one by one, without a copy.
    dense = [i for i, gradient in enumerate(gradients) if isinstance(gradient, tf.Tensor)]
    chosen = tf.cond(
        share.rows > 0,
        lambda: [tf.identity(gradients[i]) for i in dense],
        lambda: [tf.zeros_like(gradients[i]) for i in dense],
    )
    by_index = dict(zip(dense, chosen, strict=True))
    return [
        by_index[i] if i in by_index else zero_without_rows(gradient, share) for i, gradient in enumerate(gradients)
    ]


def zero_without_rows(gradient: Any, share: Share) -> Any:
    """Returns `gradient`, or zeros on a replica without rows."""
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(zero_without_rows(gradient.values, share), gradient.indices, gradient.dense_shape)
    return tf.where(share.rows > 0, gradient, tf.zeros([], gradient.dtype))


def weighted_logs(logs: Any, metric_names: Collection[str]) -> Any:
    """Returns what a step of a user's own tells, so that its mean over replicas is what one device would tell.

    Args:
        logs: what the step has returned.
        metric_names: of the model; their results stay as they are.

    A loss that is scaled by its replica's share counts as a sum, anything else as a mean over the replica's rows.
    """
    share = current.get()
    if share is None or not isinstance(logs, dict):
        return logs
    size, losses = tf.distribute.get_strategy().num_replicas_in_sync, scaled.get() or []

    def weighted(name: str, value: Any) -> Any:
        if not isinstance(value, tf.Tensor) or not value.dtype.is_floating:
            return value
        if name in metric_names:
            return value
        weight = tf.cast(share.rows * size, value.dtype) / tf.cast(share.total, value.dtype)
        parts = [
            sign * (term * size if is_made_of(term, losses) else zero_without_rows(term, share) * weight)
            for sign, term in terms_of(value)
        ]
        return tf.add_n(parts) if len(parts) > 1 else parts[0]

    return {name: weighted(name, value) for name, value in logs.items()}


# What passes a factor on from an input to its output.
_LINEAR = ("AddN", "AddV2", "Cast", "Identity", "Mean", "Mul", "Neg", "RealDiv", "Reshape", "Squeeze", "Sub", "Sum")


def terms_of(tensor: Any) -> list[tuple[int, Any]]:
    """Returns what a tensor is the sum of, with signs, as far as a graph shows it."""
    operation = None if hasattr(tensor, "numpy") else tensor.op
    if operation is None or operation.type not in ("AddV2", "Sub"):
        return [(1, tensor)]
    first, second = operation.inputs
    if first.shape != second.shape:
        return [(1, tensor)]
    sign = 1 if operation.type == "AddV2" else -1
    return terms_of(first) + [(sign * inner, term) for inner, term in terms_of(second)]


def is_made_of(tensor: Any, sources: Sequence[Any], depth: int = 16) -> bool:
    """Whether `tensor` is one of `sources`, or a sum or multiple of one."""
    if any(tensor is source for source in sources):
        return True
    operation = None if hasattr(tensor, "numpy") else tensor.op
    if operation is None or operation.type not in _LINEAR or not depth:
        return False
    return any(is_made_of(one, sources, depth - 1) for one in operation.inputs)


def note_loss(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Returns what `original` does, a loss that is scaled."""
    return noted_scaled(original(*args, **kwargs))


def note_write(original: Callable[..., Any], variable: Any, value: Any) -> None:
    """Assigns `value`, and notes that the step has written the variable.

    With `aggregation="mean"` the mean over replicas is one over their rows.
    """
    share = current.get()
    is_mean = share is not None and variable.aggregation == "mean" and tf_seam.is_mirrored(variable.value)
    if share is not None and is_mean and variable.value.dtype.is_floating and not variable.trainable:
        value = zero_without_rows(tf.cast(value, variable.value.dtype), share)
        total = sum_over_replicas(part_of_mean(value, share))
        tf_seam.local_variable(variable.value).assign(total)
    else:
        original(variable, value)
    noted(written, variable)


def noted_scaled(loss: Any) -> Any:
    """Returns `loss`, noted as one that is scaled."""
    return noted(scaled, loss)


def noted(variable: contextvars.ContextVar[list[Any] | None], value: Any) -> Any:
    """Returns `value`, added to the list that a step keeps in `variable`."""
    so_far = variable.get()
    if so_far is not None:
        so_far.append(value)
    return value


@contextlib.contextmanager
def setting(variable: contextvars.ContextVar, value: Any) -> Iterator[None]:
    """A context in which `variable` has another value."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)
