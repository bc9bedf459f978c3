"""The only module that touches private names of Keras: where gradients leave, losses are scaled and models are built.

Every name is used in `tests/test_seams.py`, which fails with a readable message when Keras moves one.
"""

import contextlib
import contextvars
import functools
import inspect
import logging
import random
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.backend.common import variables as keras_variables
from keras.src.backend.tensorflow import core as keras_core
from keras.src.backend.tensorflow import optimizer as keras_optimizer
from keras.src.backend.tensorflow import trainer as keras_trainer
from keras.src.losses import loss as keras_loss
from keras.src.optimizers import base_optimizer
from keras.src.random import seed_generator
from keras.src.trainers import data_adapters, epoch_iterator
from keras.src.trainers import trainer as base_trainer
from keras.src.trainers.data_adapters import array_data_adapter, data_adapter, data_adapter_utils, tf_dataset_adapter

from tfdp import calls, shares, tf_seam, versions
from tfdp.progress import progress_of
from tfdp.reducer import GradientReducer

_LOG = logging.getLogger("tfdp")

ReducerOf = Callable[[tf.distribute.Strategy], GradientReducer | None]

# The private names that tfdp replaces or calls, by the class or module that has them.
PRIVATE_NAMES = {
    base_optimizer.BaseOptimizer: (
        "_backend_apply_gradients",
        "_update_model_variables_moving_average",
        "_clip_gradients",
        "_get_variable_index",
    ),
    keras_optimizer.TFOptimizer: (
        "_backend_update_step",
        "_all_reduce_sum_gradients",
        "_overwrite_model_variables_with_average_value",
        "_apply_weight_decay",
    ),
    keras.optimizers.LossScaleOptimizer: ("_tf_apply", "_stateful_handle_non_finite_grads"),
    base_trainer.Trainer: ("_symbolic_build", "_flatten_metrics_in_order", "_get_metrics_result_or_logs"),
    keras_trainer.TensorFlowTrainer: ("_maybe_symbolic_build", "_make_function"),
    keras_loss: (
        "reduce_values",
        "apply_mask",
        "squeeze_or_expand_to_same_rank",
        "scale_loss_for_distribution",
        "unscale_loss_for_distribution",
    ),
    keras_trainer: ("reduce_per_replica",),
    seed_generator: ("global_seed_generator",),
    keras_trainer.TFEpochIterator: ("__init__", "_get_iterator"),
    epoch_iterator.EpochIterator: ("reset",),
    keras_variables.Variable: ("__init__",),
    keras_core.Variable: ("_initialize", "_direct_assign"),
    data_adapters: ("get_data_adapter", "is_tf_dataset"),
    tf_dataset_adapter: ("make_class_weight_map_fn",),
    array_data_adapter: ("can_convert_arrays", "ArrayDataAdapter"),
    data_adapter_utils: ("class_weight_to_sample_weights",),
}


_gradients_are_reduced = contextvars.ContextVar("gradients_are_reduced", default=False)
_is_partial_sum = contextvars.ContextVar("is_partial_sum", default=False)
_in_trainer_step = contextvars.ContextVar("in_trainer_step", default=False)
# The trainer that `fit` is about to get its data for.
_fitted: contextvars.ContextVar[Any] = contextvars.ContextVar("fitted", default=None)


def check() -> None:
    """Raises a RuntimeError that names what is missing where Keras has not got the names that tfdp builds on."""
    missing = [
        f"{getattr(owner, '__module__', '')}.{owner.__name__}.{name}".lstrip(".")
        for owner, names in PRIVATE_NAMES.items()
        for name in names
        if not callable(vars(owner).get(name))
    ]
    if missing:
        raise RuntimeError(
            f"tfdp builds on names of Keras that Keras {keras.__version__} does not have: {', '.join(missing)}. "
            "Use a version of Keras that tfdp supports (3.8 to 3.15), or report this to tfdp."
        )


def install(reducer_of: ReducerOf, share: Callable[..., Any], adapt: Callable[..., Any]) -> None:
    """Makes Keras train through tfdp under strategies of tfdp, and leaves it as it is under all others.

    Doing it again changes nothing.

    Args:
        reducer_of: returns what reduces a strategy's gradients, or None for a strategy that is not tfdp's.
        share: `tfdp.data.shard`.
        adapt: (callbacks, strategy) -> those that several workers should use, such as `callbacks.habits.adapted`.
    """
    check()
    optimizer, trainer = keras_optimizer.TFOptimizer, keras_trainer.TensorFlowTrainer
    for owner, name, replacement in (
        (optimizer, "_backend_apply_gradients", functools.partial(_reduce_then_apply, reducer_of)),
        (optimizer, "_all_reduce_sum_gradients", functools.partial(_reduce_unless_reduced, reducer_of)),
        (optimizer, "_overwrite_model_variables_with_average_value", functools.partial(_overwrite_locally, reducer_of)),
        (keras.optimizers.LossScaleOptimizer, "_tf_apply", functools.partial(_reduce_then_test, reducer_of)),
        (trainer, "_maybe_symbolic_build", functools.partial(_build_for_replicas, reducer_of)),
        (trainer, "_make_function", functools.partial(_make_weighted_function, reducer_of)),
        (keras_trainer.TFEpochIterator, "__init__", functools.partial(_share_data, reducer_of, share)),
        (keras_trainer.TFEpochIterator, "reset", functools.partial(_count_steps_of_all, reducer_of)),
        (trainer, "train_on_batch", functools.partial(_on_split_batch, reducer_of)),
        (trainer, "test_on_batch", functools.partial(_on_split_batch, reducer_of)),
        (trainer, "predict_on_batch", functools.partial(_predict_on_split_batch, reducer_of)),
        (data_adapters, "is_tf_dataset", _is_tf_dataset),
        (trainer, "fit", functools.partial(_call_together, reducer_of, adapt, "fit")),
        (trainer, "evaluate", functools.partial(_call_together, reducer_of, adapt, "evaluate")),
        (trainer, "predict", functools.partial(_call_together, reducer_of, adapt, "predict")),
        (trainer, "compute_loss", shares.note_loss),
        (base_trainer.Trainer, "_get_metrics_result_or_logs", functools.partial(_exact_metrics_or_logs, reducer_of)),
        (keras.metrics.Mean, "update_state", shares.update_mean),
        (keras_variables.Variable, "assign_add", functools.partial(_add_to_sum, reducer_of, 1)),
        (keras_variables.Variable, "assign_sub", functools.partial(_add_to_sum, reducer_of, -1)),
        (keras_trainer, "reduce_per_replica", functools.partial(_mean_of_workers, reducer_of)),
        (seed_generator, "global_seed_generator", functools.partial(_global_seeds, reducer_of)),
        (keras.random.SeedGenerator, "next", functools.partial(_seed_of_replica, reducer_of)),
        (keras_core.Variable, "_direct_assign", shares.note_write),
        (keras_variables.Variable, "__int__", functools.partial(_as_number, int)),
        (keras_variables.Variable, "__float__", functools.partial(_as_number, float)),
        (keras_loss, "scale_loss_for_distribution", shares.scale_by_share),
        (keras_loss, "unscale_loss_for_distribution", shares.unscale_by_share),
        (keras_loss, "reduce_values", _reduce_values_over_all),
        (keras_loss, "apply_mask", _apply_mask_over_all),
    ):
        _replace(owner, name, replacement)
    if not isinstance(vars(trainer).get("stop_training"), property):
        trainer.stop_training = property(_stops, _wish_to_stop)
    if versions.release(keras.__version__) < (3, 14):
        _replace(keras.Layer, "add_loss", _add_sum_over_rows)
    if "synchronization" not in inspect.signature(keras_variables.Variable.__init__).parameters:  # before Keras 3.10
        _replace(keras.Metric, "add_variable", _add_metric_variable)
        _replace(keras_variables.Variable, "__init__", _mark_partial_sum)
        _replace(keras_core.Variable, "_initialize", functools.partial(_initialize_partial_sum, reducer_of))


def install_epochs() -> None:
    """Makes Keras take an `EpochData`, and ask it anew for each epoch, also where no strategy of tfdp was made."""
    check()
    _replace(keras_trainer.TFEpochIterator, "_get_iterator", _begin_epoch)
    _replace(data_adapters, "get_data_adapter", _adapter_of)


def _replace(owner: Any, name: str, replacement: Callable[..., Any]) -> None:
    """Replaces a method or function by `replacement(original, ...)`, once."""
    original = getattr(owner, name)
    if hasattr(original, "replaced_by_tfdp"):
        return

    @functools.wraps(original)
    def replaced(*args: Any, **kwargs: Any) -> Any:
        return replacement(original, *args, **kwargs)

    replaced.replaced_by_tfdp = original  # type: ignore[attr-defined]
    setattr(owner, name, replaced)


# Gradients: summed over all replicas before Keras clips, decays and updates, as one device would.


def _reduce_then_apply(
    reducer_of: ReducerOf,
    original: Callable[..., Any],
    optimizer: Any,
    gradients: Sequence[Any],
    variables: Sequence[Any],
) -> None:
    reducer = _active_reducer(reducer_of)
    if reducer is None:
        original(optimizer, gradients, variables)
    elif optimizer.gradient_accumulation_steps:
        _accumulate_then_reduce(reducer, optimizer, gradients, variables)
    elif _gradients_are_reduced.get():
        original(optimizer, gradients, variables)
    else:
        gradients = _reduce(reducer, optimizer, gradients, variables)
        with shares.setting(_gradients_are_reduced, True):
            original(optimizer, gradients, variables)


def _reduce_unless_reduced(
    reducer_of: ReducerOf,
    original: Callable[..., Any],
    optimizer: Any,
    grads_and_vars: Sequence[tuple[Any, Any]],
) -> list[tuple[Any, Any]]:
    reducer = _active_reducer(reducer_of)
    if reducer is None:
        return original(optimizer, grads_and_vars)
    pairs = list(grads_and_vars)
    if _gradients_are_reduced.get():
        return pairs
    present = [(gradient, variable) for gradient, variable in pairs if gradient is not None]
    if present:
        gradients, variables = map(list, zip(*present, strict=True))
        reduced = iter(_reduce(reducer, optimizer, gradients, variables))
    return [(None if gradient is None else next(reduced), variable) for gradient, variable in pairs]


def _accumulate_then_reduce(
    reducer: GradientReducer, optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any]
) -> None:
    """Adds gradients up on each replica, and reduces once an update.

    The choice between both stands in cross-replica context: TensorFlow does not merge replicas within a choice of
    theirs.
    """
    steps = optimizer.gradient_accumulation_steps
    sums = [optimizer._accumulated_gradients[optimizer._get_variable_index(variable)] for variable in variables]

    def own(local: Sequence[Any]) -> list[tf.Tensor]:
        return [tf.convert_to_tensor(gradient) for gradient in shares.without_rows_nothing(local)]

    def update(local: Sequence[Any]) -> None:
        held = [tf_seam.local_variable(total.value) for total in sums]
        means = [(gradient + total) / steps for gradient, total in zip(own(local), held, strict=True)]
        means = reducer.reduce(optimizer, means, variables)
        with shares.setting(_gradients_are_reduced, True):
            means = optimizer._clip_gradients(means)
            optimizer._apply_weight_decay(variables)
            optimizer._backend_update_step(means, variables, optimizer.learning_rate)
        for total in optimizer._accumulated_gradients:
            if total is not None:
                component = tf_seam.local_variable(total.value)
                component.assign(tf.zeros_like(component))

    def accumulate(local: Sequence[Any]) -> None:
        for gradient, total in zip(own(local), sums, strict=True):
            tf_seam.local_variable(total.value).assign_add(gradient)

    def choose(strategy: tf.distribute.Strategy, per_replica: Sequence[Any], share: shares.Share | None) -> None:
        def on_replicas(function: Callable[..., None]) -> Callable[[], tf.Tensor]:
            def branch() -> tf.Tensor:
                tf_seam.call_for_each_replica(strategy, _with_share(function), args=(share, per_replica))
                return tf.constant(0)

            return branch

        is_update = tf.equal((optimizer._iterations.value + 1) % steps, 0)
        tf.cond(is_update, on_replicas(update), on_replicas(accumulate))

    tf.distribute.get_replica_context().merge_call(choose, args=(list(gradients), shares.current.get()))
    if optimizer.use_ema:
        optimizer._update_model_variables_moving_average(optimizer._trainable_variables)
        if optimizer.ema_overwrite_frequency:
            tf.cond(
                tf.equal((tf.convert_to_tensor(optimizer.iterations) + 1) % optimizer.ema_overwrite_frequency, 0),
                lambda: _after(optimizer._overwrite_model_variables_with_average_value(optimizer._trainable_variables)),
                lambda: tf.constant(0),
            )
    if "assign_add" in base_optimizer.BaseOptimizer._backend_apply_gradients.__code__.co_names:
        optimizer._iterations.assign_add(1)  # older Keras counts here, later ones where this is called


def _reduce_then_test(
    reducer_of: ReducerOf,
    original: Callable[..., Any],
    optimizer: Any,
    grads: Sequence[Any],
    trainable_variables: Sequence[Any] | None = None,
) -> None:
    """Unscales, reduces and then tests for overflow: all replicas see the same sum, and skip or update alike.

    Keras tests each replica's own gradients and takes the first replica's answer.
    """
    reducer = _active_reducer(reducer_of)
    if reducer is None:
        original(optimizer, grads, trainable_variables)
        return
    inner = optimizer.inner_optimizer
    variables = list(trainable_variables or optimizer._trainable_variables)
    overwritten = [getattr(variable, "overwrite_with_gradient", False) for variable in variables]
    scale = optimizer.dynamic_scale
    grads = [
        gradient if gradient is None or direct else keras.ops.divide(gradient, scale)
        for gradient, direct in zip(grads, overwritten, strict=True)
    ]
    accumulates = bool(inner.gradient_accumulation_steps)
    if not accumulates:
        chosen = [i for i, gradient in enumerate(grads) if gradient is not None and not overwritten[i]]
        reduced = _reduce(reducer, inner, [grads[i] for i in chosen], [variables[i] for i in chosen]) if chosen else []
        for i, gradient in zip(chosen, reduced, strict=True):
            grads[i] = gradient
    finite = optimizer.check_finite(grads)
    if accumulates:
        context = tf.distribute.get_replica_context()
        share = shares.current.get()
        finite = finite if share is None else finite | (share.rows == 0)
        finite = tf.equal(context.all_reduce(tf.distribute.ReduceOp.SUM, tf.cast(~finite, tf.int32)), 0)

    def apply(local: Sequence[Any]) -> None:
        with shares.setting(_gradients_are_reduced, not accumulates):
            inner.apply(list(local), trainable_variables=variables)

    def grow() -> None:
        optimizer.step_counter.assign(0)
        optimizer.dynamic_scale.assign(keras.ops.multiply(optimizer.dynamic_scale, 2.0))

    def count() -> None:
        optimizer.step_counter.assign_add(1)

    def choose(
        strategy: tf.distribute.Strategy, per_replica: Sequence[Any], finite: Any, share: shares.Share | None
    ) -> None:
        def update() -> None:
            tf_seam.call_for_each_replica(strategy, _with_share(apply), args=(share, per_replica))
            keras.ops.cond(
                keras.ops.equal(optimizer.step_counter, optimizer.dynamic_growth_steps - 1),
                grow,
                count,
            )

        first = strategy.experimental_local_results(finite)[0]
        keras.ops.cond(first, update, optimizer._stateful_handle_non_finite_grads)

    tf.distribute.get_replica_context().merge_call(choose, args=(list(grads), finite, shares.current.get()))


def _overwrite_locally(
    reducer_of: ReducerOf, original: Callable[..., Any], optimizer: Any, trainable_variables: Sequence[Any]
) -> None:
    """Overwrites this replica's copies by their averages; Keras merges replicas, which fails within a choice."""
    if _active_reducer(reducer_of) is None:
        original(optimizer, trainable_variables)
        return
    for variable, average in zip(trainable_variables, optimizer._model_variables_moving_average, strict=True):
        if average is not None:
            component = tf_seam.local_variable(getattr(variable, "value", variable))
            component.assign(tf_seam.local_variable(average.value))


def _reduce(reducer: GradientReducer, optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
    # Keras squares and clips the rows of sparse gradients one by one, repeated ones too. Only SGD just adds them up.
    clips = any(getattr(optimizer, name, None) for name in ("clipnorm", "global_clipnorm", "clipvalue"))
    keep_rows = clips or type(optimizer) is not keras.optimizers.SGD
    return reducer.reduce(optimizer, shares.without_rows_nothing(gradients), variables, keep_rows=keep_rows)


# Losses: every example weighs 1 / (global batch), however the batch is split.


def _add_sum_over_rows(original: Callable[..., Any], layer: Any, loss: Any) -> None:
    """Adds an activity regularizer of Keras before 3.14 as the sum over rows that it is; others count as means."""
    share = shares.current.get()
    if share is not None and _is_called_by(inspect.currentframe(), keras.Layer.__call__):
        loss = shares.mean_of_part(loss, share)
    original(layer, loss)


def _is_called_by(frame: Any, function: Callable[..., Any]) -> bool:
    """Whether the original of what stands in `frame`, a replacement, has been called by `function`."""
    return frame.f_back.f_back.f_code is inspect.unwrap(function).__code__  # a replacement is called by a wrapper


def _reduce_values_over_all(
    original: Callable[..., Any], values: Any, sample_weight: Any = None, reduction: str | None = "sum_over_batch_size"
) -> Any:
    """Reduces a loss: a scalar counts as a mean over the replica's rows, weighted means divide by all weights."""
    if not _in_trainer_step.get():
        return original(values, sample_weight, reduction)
    if tuple(values.shape) == () and reduction not in (None, "none", "sum"):
        return keras_loss.scale_loss_for_distribution(values)
    if reduction == "mean_with_sample_weight" and sample_weight is not None:
        weight = shares.sum_over_replicas(keras.ops.cast(keras.ops.sum(sample_weight), values.dtype))
        return shares.as_mean(keras.ops.divide_no_nan(keras.ops.sum(values), weight))
    reduced = original(values, sample_weight, reduction)
    return shares.as_mean(reduced) if reduction == "sum" else reduced


def _apply_mask_over_all(
    original: Callable[..., Any], sample_weight: Any, mask: Any, dtype: Any, reduction: str | None
) -> Any:
    """Gives valid steps the weight all / valid over all replicas, where Keras takes each replica's own."""
    if mask is None or reduction not in ("mean", "sum_over_batch_size") or not _in_trainer_step.get():
        return original(sample_weight, mask, dtype, reduction)
    counts = tf.stack([tf.cast(tf.size(mask), dtype), tf.reduce_sum(tf.cast(mask, dtype))])
    total, valid = tf.unstack(shares.sum_over_replicas(counts))
    float_mask = tf.where(tf.cast(mask, tf.bool), tf.math.divide_no_nan(total, valid), 0)
    if sample_weight is None:
        return float_mask
    float_mask, sample_weight = keras_loss.squeeze_or_expand_to_same_rank(
        float_mask, keras.ops.cast(sample_weight, dtype)
    )
    return sample_weight * float_mask


# Metrics of Keras before 3.10, whose variables are summed over the replicas at every write: each replica's part stays
# its own until it is read, as in later versions.


def _add_metric_variable(original: Callable[..., Any], metric: Any, *args: Any, **kwargs: Any) -> Any:
    with shares.setting(_is_partial_sum, kwargs.get("aggregation", "sum") == "sum"):
        return original(metric, *args, **kwargs)


def _mark_partial_sum(original: Callable[..., Any], variable: Any, *args: Any, **kwargs: Any) -> None:
    variable.is_partial_sum = _is_partial_sum.get()  # its value may be made later, in another place
    original(variable, *args, **kwargs)


def _initialize_partial_sum(
    reducer_of: ReducerOf, original: Callable[..., Any], variable: Any, *args: Any, **kwargs: Any
) -> Any:
    ours = reducer_of(tf.distribute.get_strategy()) is not None
    with shares.setting(tf_seam.making_partial_sum, ours and variable.is_partial_sum):
        return original(variable, *args, **kwargs)


# Steps: what Keras's trainer runs on every replica.


class _TrainerStep:
    """A trainer's step on one replica that knows its share of the global batch."""

    def __init__(self, trainer: Any, step_function: Callable[[Any], Any]) -> None:
        self._trainer, self._step_function = trainer, step_function
        self._trains = getattr(step_function, "__name__", "") == "train_step"
        functools.update_wrapper(self, step_function)

    def __call__(self, data: Any) -> Any:
        if tf.distribute.get_replica_context() is None:
            return self._step_function(data)
        # Where data has ended nothing may happen any more, not even what does not look at the data, such as counting.
        with tf.control_dependencies([leaf for leaf in tf.nest.flatten(data, True) if isinstance(leaf, tf.Tensor)]):
            share = self._noted_share(data)
            if tf.distribute.get_strategy().num_replicas_in_sync == 1:
                return self._step_function(data)
            with contextlib.ExitStack() as stack:
                for variable, value in (
                    (shares.current, share),
                    (_in_trainer_step, True),
                    (shares.written, []),
                    (shares.scaled, []),
                    (shares.unscaled, []),
                ):
                    stack.enter_context(shares.setting(variable, value))
                outputs = self._step_function(data)
                _bring_together(self._trainer)
                names = _names_of_metrics(self._trainer, shares.written.get() or [])
                vars(self._trainer).setdefault("_tfdp_metric_names", set()).update(names)
                return shares.weighted_logs(outputs, names)

    def _noted_share(self, data: Any) -> shares.Share | None:
        """Returns the share of `data`; a step that trains notes it in the progress, with the wishes to stop."""
        rows = shares.rows_of(data)
        if not self._trains:
            return None if rows is None else shares.Share(rows, shares.sum_over_replicas(rows))
        progress = progress_of(self._trainer)
        counts = tf.stack([tf.constant(0) if rows is None else rows, progress.wish])
        total, wishes = tf.unstack(shares.sum_over_replicas(counts))
        if tf_seam.local_replica_id(tf.distribute.get_replica_context()) == 0:
            progress.note(total, wishes)
        return None if rows is None else shares.Share(rows, total)


def _names_of_metrics(trainer: Any, written: Sequence[Any]) -> set[str]:
    """Returns the names of the metrics whose variables a step has written."""
    ids = {id(variable) for variable in written}
    names: set[str] = set()
    for metric in trainer.metrics:
        if any(id(variable) in ids for variable in metric.variables):
            compiled = metric.result() if hasattr(metric, "metrics") else None  # with names of outputs before theirs
            names |= compiled.keys() if isinstance(compiled, dict) else {metric.name}
    return names


def _exact_metrics_or_logs(
    reducer_of: ReducerOf, original: Callable[..., Any], trainer: Any, logs: Any
) -> dict[str, Any]:
    """Returns the logs of an epoch, with metrics of all replicas also where a step tells more than metrics.

    Keras then takes what the last step has told, which are each replica's own metrics.
    """
    results = original(trainer, logs)
    names = vars(trainer).get("_tfdp_metric_names", set())
    taken = results is not logs  # of all replicas already
    if taken or not isinstance(logs, dict) or reducer_of(trainer.distribute_strategy) is None or not names:
        return results
    exact = trainer.get_metrics_result()

    def with_exact(logs: dict[str, Any]) -> dict[str, Any]:
        return {
            name: with_exact(value) if isinstance(value, dict) else exact.get(name, value) if name in names else value
            for name, value in logs.items()
        }

    return with_exact(logs)


def _scale_own_loss(trainer: Any) -> None:
    """Lets a `compute_loss` of a user's own count as a mean over its replica's rows, whatever it is made of."""
    own = type(trainer).compute_loss
    if own is keras_trainer.TensorFlowTrainer.compute_loss or "compute_loss" in vars(trainer):
        return

    @functools.wraps(own)
    def compute_loss(*args: Any, **kwargs: Any) -> Any:
        with shares.setting(shares.scaled_later, True):
            loss = own(trainer, *args, **kwargs)
        is_scalar = isinstance(loss, tf.Tensor) and loss.shape.rank == 0
        return keras_loss.scale_loss_for_distribution(loss) if is_scalar and shares.current.get() is not None else loss

    vars(trainer)["compute_loss"] = compute_loss


def _make_weighted_function(
    reducer_of: ReducerOf, original: Callable[..., Any], trainer: Any, step_function: Callable[[Any], Any]
) -> Any:
    strategy = trainer.distribute_strategy
    reducer = reducer_of(strategy)
    if reducer is None:
        return original(trainer, step_function)
    several = reducer.num_replicas > 1
    if trainer.jit_compile and several and any("CPU" in device for device in strategy.extended.worker_devices):
        raise ValueError(
            "`jit_compile=True` does not work with several replicas on CPUs: XLA has no collectives there. "
            "Compile the model with jit_compile='auto' or False. Received: jit_compile=True."
        )
    if several:
        optimizer = getattr(trainer, "optimizer", None)
        _check_that_the_strategy_knows(
            [*trainer.variables, *trainer.metrics_variables, *(optimizer.variables if optimizer else ())]
        )
    progress_of(trainer)
    make_global_seeds(strategy)  # before a step is traced, which would be traced again for variables that it makes
    _scale_own_loss(trainer)
    return _counting_the_end(original(trainer, _TrainerStep(trainer, step_function)), trainer, step_function)


def _counting_the_end(function: Callable[..., Any], trainer: Any, step_function: Callable[[Any], Any]) -> Any:
    """Returns `function`, which counts the step at which data of unknown length has ended, as Keras does.

    Without a strategy the count of the optimizer runs ahead there, before TensorFlow knows that there is no data.
    """
    if step_function.__name__ != "train_step" or trainer.run_eagerly or trainer.steps_per_execution > 1:
        return function

    @functools.wraps(function)
    def counting(iterator: Any) -> Any:
        try:
            return function(iterator)
        except tf.errors.OutOfRangeError:
            for optimizer in vars(trainer).values():
                if isinstance(optimizer, keras.optimizers.Optimizer) and not hasattr(optimizer, "inner_optimizer"):
                    optimizer.iterations.assign_add(1)
            raise

    return counting


def _check_that_the_strategy_knows(variables: Sequence[Any]) -> None:
    """Raises a ValueError for variables that each replica or worker would change on its own."""
    foreign = [variable.path for variable in variables if not tf_seam.is_distributed(variable.value)]
    if foreign:
        raise _created_outside(", ".join(dict.fromkeys(foreign)))


def _created_outside(what: str) -> ValueError:
    return ValueError(
        "All of a model's layers, metrics and optimizers must be created, and the model be compiled, within `with "
        f"strategy.scope():`, so that their variables are equal on all replicas. Created outside: {what}."
    )


def _bring_together(trainer: Any) -> None:
    """Gives all replicas one value of each variable that their step has written without a rule for several replicas.

    Such are the moving statistics of BatchNormalization, and whatever a user's layer keeps with Keras's default,
    `aggregation="none"`. Keras leaves every replica its own, saves the first one's, and an empty replica's may be NaN.
    Numbers become the mean, each replica's weighted by its rows; what is no floating-point number the first replica's.
    """
    synchronized = {
        id(variable)
        for layer in trainer._flatten_layers()
        if isinstance(layer, keras.layers.BatchNormalization) and layer.synchronized
        for variable in layer.variables
    }
    own = {id(variable) for variable in trainer.non_trainable_variables} - synchronized
    written = {
        id(variable): variable
        for variable in shares.written.get() or []
        if id(variable) in own and variable.aggregation == "none" and tf_seam.is_distributed(variable.value)
    }
    if not written:
        return
    share, context = shares.current.get(), tf.distribute.get_replica_context()
    is_first = tf_seam.replica_id(context) == 0

    def part(value: tf.Tensor) -> tf.Tensor:
        if not value.dtype.is_floating:
            return tf.identity(value) if is_first else tf.zeros_like(value)
        if share is None:
            return value / context.num_replicas_in_sync
        return shares.part_of_mean(shares.zero_without_rows(value, share), share)

    by_dtype: dict[str, list[Any]] = {}
    for variable in written.values():
        by_dtype.setdefault(variable.value.dtype.name, []).append(variable)
    for variables in by_dtype.values():
        values = [part(tf.convert_to_tensor(variable.value)) for variable in variables]
        totals = context.all_reduce(tf.distribute.ReduceOp.SUM, values)
        for variable, total in zip(variables, totals, strict=True):
            tf_seam.local_variable(variable.value).assign(total)


def _add_to_sum(
    reducer_of: ReducerOf, sign: int, original: Callable[..., Any], variable: Any, value: Any, *args: Any
) -> Any:
    """Adds the sum over all replicas to a variable with `aggregation="sum"`, such as a count of rows.

    Keras assigns the sum over replicas of what the variable and each value add up to.
    """
    context = tf.distribute.get_replica_context()
    ours = context is not None and reducer_of(context.strategy) is not None
    if not ours or variable.aggregation != "sum" or not tf_seam.is_mirrored(variable.value):
        return original(variable, value, *args)
    total = context.all_reduce(tf.distribute.ReduceOp.SUM, tf.cast(value, variable.value.dtype))
    local = tf_seam.local_variable(variable.value)
    local.assign(local + sign * total)
    return variable.value


def _mean_of_workers(
    reducer_of: ReducerOf, original: Callable[..., Any], values: Any, strategy: Any, reduction: str
) -> Any:
    """Reduces what steps return over all replicas; Keras reduces arrays over their rows too, under several workers."""
    if reducer_of(strategy) is None or reduction not in ("auto", "mean") or strategy.num_workers == 1:
        return original(values, strategy, reduction)
    return keras.tree.map_structure(lambda value: strategy.reduce("MEAN", value, axis=None), values)


# Random numbers: others on each replica, the same ones in each run.


def make_global_seeds(strategy: tf.distribute.Strategy) -> None:
    """Makes what `keras.random` draws from where no seed is given, as variables that all replicas of `strategy` have.

    Keras makes it when it is first used, which fails within a step.
    """
    kept = seed_generator.global_state.get_global_attribute(seed_generator_name())
    own = getattr(strategy, "global_seeds", None)
    held = getattr(getattr(kept, "state", None), "_value", None)
    if getattr(held, "distribute_strategy", None) is strategy:
        own = kept
    elif kept is None or own is None:  # it is the first time, or seeds were set anew
        # Made from a state of Python's random numbers that stays as it is: the weights of later layers follow from it.
        seed = random.Random(str(random.getstate())).randint(1, 10**9)
        with tf.init_scope(), strategy.scope():
            own = keras.random.SeedGenerator(seed, name="global_seed_generator")
    # Else another strategy was used meanwhile, which other workers may not have: nothing is made that they would miss.
    seed_generator.global_state.set_global_attribute(seed_generator_name(), own)
    strategy.global_seeds = own  # which threads of replicas see, unlike what Keras holds in this one


def seed_generator_name() -> str:
    """Returns the name under which Keras holds its global seed generator."""
    return getattr(seed_generator, "GLOBAL_SEED_GENERATOR", "global_seed_generator")


def _global_seeds(reducer_of: ReducerOf, original: Callable[..., Any]) -> Any:
    """Returns the strategy's within a replica, whose thread does not see what Keras holds in another one."""
    context = tf.distribute.get_replica_context()
    ours = context is not None and reducer_of(context.strategy) is not None
    return (getattr(context.strategy, "global_seeds", None) if ours else None) or original()


def _seed_of_replica(
    reducer_of: ReducerOf, original: Callable[..., Any], generator: Any, *args: Any, **kwargs: Any
) -> Any:
    with shares.setting(shares.written, None):  # its state counts up alike on all replicas
        seed = original(generator, *args, **kwargs)
    context = tf.distribute.get_replica_context()
    if context is None or reducer_of(context.strategy) is None:
        return seed
    return seed + tf.constant([tf_seam.replica_id(context) * _SEED_STRIDE, 0], seed.dtype)


_SEED_STRIDE = 0x9E3779B97F4A7C15 >> 16  # odd, and wider than any seed that a user would choose


# Calls: all workers enter them together, and stop after the same step.


# Arguments of Keras's calls that all workers must give alike.
_SAME = ("epochs", "initial_epoch", "validation_steps", "validation_freq")


def _call_together(
    reducer_of: ReducerOf,
    adapt: Callable[..., Any],
    call: str,
    original: Callable[..., Any],
    trainer: Any,
    *args: Any,
    **kwargs: Any,
) -> Any:
    strategy = trainer.distribute_strategy
    if reducer_of(strategy) is None:
        return original(trainer, *args, **kwargs)
    if call == "fit":
        vars(trainer).pop("_tfdp_training_data", None)
    with shares.setting(_fitted, trainer if call == "fit" else None):
        if strategy.num_workers == 1:
            return original(trainer, *args, **kwargs)
        given = inspect.signature(original).bind(trainer, *args, **kwargs)
        with contextlib.ExitStack() as stack:
            stack.enter_context(_entered(strategy, call, trainer, given))
            if call == "fit":
                stack.enter_context(_together(strategy, trainer, adapt, given.arguments))
            return original(*given.args, **given.kwargs)


def _entered(strategy: Any, call: str, trainer: Any, given: inspect.BoundArguments) -> Any:
    """Returns the context of a call that all workers enter together, and prepares what this worker is `given`."""
    is_keras_own = bool(given.arguments.get("kwargs", {}).get("_use_cached_eval_dataset"))
    if strategy.worker > 0:
        given.arguments["verbose"] = 0
    given.apply_defaults()
    same = {name: str(given.arguments[name]) for name in _SAME if name in given.arguments}
    same["steps_per_execution"] = str(trainer.steps_per_execution)
    if call == "fit":
        validates = given.arguments["validation_data"] is not None or given.arguments["validation_split"]
        same["validation_data"] = "given" if validates else "none"
    return calls.entered(strategy, call, arguments=same, is_keras_own=is_keras_own)


@contextlib.contextmanager
def _together(strategy: Any, trainer: Any, adapt: Callable[..., Any], arguments: dict[str, Any]) -> Iterator[None]:
    """Adapts the callbacks to several workers, and adds the one that keeps them together, as the last one."""
    together = calls.Together(strategy)
    callbacks: Any = arguments.get("callbacks")
    own_list = callbacks if isinstance(callbacks, keras.callbacks.CallbackList) else None
    if own_list is not None:
        adapt(own_list, strategy)
        together.set_model(trainer)
        together.set_params(own_list.params)
        own_list.callbacks.append(together)
    else:
        given = keras.tree.flatten(callbacks) if callbacks else []
        arguments["callbacks"] = [*adapt(given, strategy), together]
    vars(trainer)["_tfdp_together"] = together
    try:
        yield
    finally:
        del vars(trainer)["_tfdp_together"]
        if own_list is not None:
            own_list.callbacks.remove(together)


def _stops(trainer: Any) -> bool:
    """Returns whether a training stops: what all workers have agreed on for Keras, this worker's wish for others."""
    together = vars(trainer).get("_tfdp_together")
    if together is None:
        return vars(trainer).get("_tfdp_stops", False)
    fit = inspect.unwrap(keras_trainer.TensorFlowTrainer.fit).__code__
    return together.has_stopped if sys._getframe(1).f_code is fit else together.wishes


def _wish_to_stop(trainer: Any, wishes: bool) -> None:
    vars(trainer)["_tfdp_stops"] = wishes
    together = vars(trainer).get("_tfdp_together")
    if together is not None:
        together.wish(bool(wishes))


def _as_number(kind: Callable[[Any], Any], original: Callable[..., Any], variable: Any) -> Any:
    """Returns the number that a scalar variable holds, on several replicas too."""
    if variable.ndim == 0 and tf_seam.is_distributed(variable.value):
        return kind(tf.convert_to_tensor(variable.value))
    return original(variable)


def _is_tf_dataset(original: Callable[..., Any], dataset: Any) -> bool:
    """Whether `dataset` is one of TensorFlow's; older Keras does not know those that are made by a function."""
    return original(dataset) or tf_seam.is_made_by_function(dataset)


def _count_steps_of_all(reducer_of: ReducerOf, original: Callable[..., Any], iterator: Any) -> None:
    """Makes an epoch as long on every worker: until the last one has run out; those before it join with nothing.

    Keras counts each worker's own batches, and those of all its replicas where the data set is made by a function.
    """
    original(iterator)
    strategy = iterator._distribute_strategy
    if reducer_of(strategy) is None:
        return
    steps = iterator._num_batches
    counts_batches = not isinstance(iterator.data_adapter, EpochData)
    if steps is not None and counts_batches and tf_seam.is_made_by_function(iterator._distributed_dataset):
        steps = -(-steps // len(strategy.extended.worker_devices))
    iterator._num_batches = strategy.most_steps(steps, iterator.steps_per_epoch)


# What is done to all batches of an epoch.
OfBatches = Callable[[tf.data.Dataset], tf.data.Dataset]


class EpochData(data_adapter.DataAdapter):
    """Data that knows which epoch it is in: Keras asks it anew for each, and takes what it gives."""

    def begin_epoch(self, consumer: Any, transform: OfBatches | None = None) -> Any:
        """Returns an iterable over the batches of an epoch.

        Args:
            consumer: whose `steps_seen` tells how many of them were taken.
            transform: is done to the batches.
        """
        raise NotImplementedError

    def get_tf_dataset(self, transform: OfBatches | None = None) -> Any:
        """Returns batches of the kind that `begin_epoch` gives."""
        raise NotImplementedError

    def check_strategy(self, strategy: tf.distribute.Strategy) -> None:
        """Raises a ValueError where the data are not for a model under `strategy`."""

    @property
    def is_short(self) -> bool:
        """Whether this epoch began within one, and is shorter than others."""
        return False


class _ClassWeighted(EpochData):
    """Data whose examples weigh as much as their classes, for one call of `fit`."""

    def __init__(self, data: EpochData, class_weight: Any) -> None:
        self._data = data
        weigh = tf_dataset_adapter.make_class_weight_map_fn(class_weight)
        self._transform = lambda batches: batches.map(weigh, num_parallel_calls=tf.data.AUTOTUNE)

    def begin_epoch(self, consumer: Any, transform: OfBatches | None = None) -> Any:
        return self._data.begin_epoch(consumer, self._transform)

    def get_tf_dataset(self, transform: OfBatches | None = None) -> Any:
        return self._data.get_tf_dataset(self._transform)

    def check_strategy(self, strategy: tf.distribute.Strategy) -> None:
        self._data.check_strategy(strategy)

    @property
    def is_short(self) -> bool:
        return self._data.is_short

    def on_epoch_begin(self) -> None:
        self._data.on_epoch_begin()

    def on_epoch_end(self) -> None:
        self._data.on_epoch_end()

    @property
    def num_batches(self) -> int | None:
        return self._data.num_batches

    @property
    def batch_size(self) -> int | None:
        return self._data.batch_size

    @property
    def has_partial_batch(self) -> bool | None:
        return self._data.has_partial_batch

    @property
    def partial_batch_size(self) -> int | None:
        return self._data.partial_batch_size


def _adapter_of(
    original: Callable[..., Any],
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    batch_size: int | None = None,
    steps_per_epoch: int | None = None,
    shuffle: Any = False,
    class_weight: Any = None,
) -> Any:
    """Refuses what sharded data cannot be given beside, and weighs classes, both of which Keras would pass over."""
    if not isinstance(x, EpochData):
        with _warnings_of_caller():
            return original(
                x=x,
                y=y,
                sample_weight=sample_weight,
                batch_size=batch_size,
                steps_per_epoch=steps_per_epoch,
                shuffle=shuffle,
                class_weight=class_weight,
            )
    # A validation, which does not shuffle, gets the batch size of the training.
    size = batch_size if shuffle and batch_size != x.batch_size else None
    given = {"y": y, "sample_weight": sample_weight, "batch_size": size}
    given = {name: value for name, value in given.items() if value is not None}
    if given:
        (name, value), *_ = given.items()
        received = f"batch_size={value!r}" if name == "batch_size" else f"a {type(value).__name__} as `{name}`"
        remedy = {
            "y": "Share pairs: tfdp.data.shard((x, y), ...).",
            "sample_weight": "Share triples: tfdp.data.shard((x, y, sample_weight), ...).",
            "batch_size": "Give tfdp.data.shard its `global_batch_size`.",
        }[name]
        raise ValueError(
            f"`{name}` must not be given where `x` is what tfdp.data.shard returns. Received: {received}. {remedy}"
        )
    return x if class_weight is None else _ClassWeighted(x, class_weight)


@contextlib.contextmanager
def _warnings_of_caller() -> Iterator[None]:
    """Lets Keras's warnings be those of Keras's module that has asked for what a replacement does, not of tfdp's."""
    frame = sys._getframe(4)  # past contextlib, the replacement and what `_replace` wraps it in
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for one in caught:
        warnings.warn_explicit(
            one.message,
            one.category,
            frame.f_code.co_filename,
            frame.f_lineno,
            frame.f_globals.get("__name__"),
            frame.f_globals.setdefault("__warningregistry__", {}),
        )


def steps_seen(consumer: Any) -> int:
    """Returns how many batches Keras has taken, or is about to take, from the last iterator that it was given."""
    return consumer._steps_seen


def has_run_out(consumer: Any) -> bool:
    """Whether the last iterator that Keras was given has ended, found out by a step for which nothing was left."""
    return consumer._steps_seen > 0 and consumer._current_iterator is None


def forget_length(consumer: Any) -> None:
    """Lets Keras find anew how many batches an epoch has."""
    consumer._num_batches = None


def begin_at(trainer: Any, epoch: int | None) -> None:
    """Lets `fit`, which has begun, go on with another epoch; None for the one that it was asked for."""
    trainer._initial_epoch = epoch


def _begin_epoch(original: Callable[..., Any], iterator: Any) -> Any:
    data = iterator.data_adapter
    if not isinstance(data, EpochData):
        return original(iterator)
    data.check_strategy(iterator._distribute_strategy)
    was_short = data.is_short
    batches = data.begin_epoch(iterator)
    iterator._steps_seen = 0
    if not iterator.steps_per_epoch and (was_short or data.num_batches is not None):
        iterator._num_batches = data.num_batches  # else it stays as long as Keras has found it to be
    return batches


def _share_data(
    reducer_of: ReducerOf,
    share: Callable[..., Any],
    original: Callable[..., Any],
    iterator: Any,
    distribute_strategy: Any = None,
    x: Any = None,
    y: Any = None,
    sample_weight: Any = None,
    batch_size: int | None = None,
    steps_per_epoch: int | None = None,
    shuffle: bool | str = False,
    class_weight: Any = None,
    **kwargs: Any,
) -> None:
    """Gives several workers one order of the examples, where each would shuffle them on its own."""
    if isinstance(x, EpochData):
        x.check_strategy(distribute_strategy)
    if reducer_of(distribute_strategy) is not None and tf_seam.in_multi_worker_mode(distribute_strategy):
        # With shuffle="batch" too, whose batches as they are each worker would take in another order.
        if shuffle and array_data_adapter.can_convert_arrays((x, y, sample_weight)):
            arrays = array_data_adapter.ArrayDataAdapter(
                x, y, sample_weight=sample_weight, class_weight=class_weight, batch_size=batch_size
            )
            size = arrays.batch_size
            x = arrays._inputs
            leaves = tf.nest.flatten(x)
            if any(isinstance(leaf, tf.SparseTensor) for leaf in leaves):
                x = tf.data.Dataset.from_tensor_slices(x)  # rows of sparse tensors can be read, but not picked
            rows = int(leaves[0].shape[0])
            x = share(x, strategy=distribute_strategy, global_batch_size=size, shuffle_buffer=rows)
            y = sample_weight = class_weight = None
            shuffle = False
        elif isinstance(x, tf.data.Dataset) and y is None and sample_weight is None:
            x = _in_one_order(x, class_weight, distribute_strategy, share)
    fitted = _fitted.get()
    if fitted is not None:  # what it validates on comes later
        vars(fitted).setdefault("_tfdp_training_data", x if isinstance(x, EpochData) else None)
    original(
        iterator,
        distribute_strategy,
        x=x,
        y=y,
        sample_weight=sample_weight,
        batch_size=batch_size,
        steps_per_epoch=steps_per_epoch,
        shuffle=shuffle,
        class_weight=class_weight,
        **kwargs,
    )


def _in_one_order(
    dataset: tf.data.Dataset, class_weight: Any, strategy: tf.distribute.Strategy, share: Callable[..., Any]
) -> Any:
    """Returns a data set of which every worker takes its part of each batch, in an order that all have."""
    mine = [tf_seam.shuffle_seeds(dataset), tf_seam.is_shuffled_anew(dataset)]
    everyones = strategy.everyones("the seeds of a data set's shuffling", mine)
    if any(others[1] or others != mine for others in everyones):
        peeled = tf_seam.peeled(dataset)
        ends = int(peeled.inner.cardinality()) != tf.data.INFINITE_CARDINALITY
        settled = not tf_seam.shuffle_seeds(peeled.inner) and not tf_seam.is_unsettled(peeled.inner)
        if peeled.batch is not None and settled and ends and class_weight is None:
            return share(dataset, strategy=strategy)
        _LOG.warning(
            "tfdp: the data set has another order on each worker, as it is shuffled without a seed or with others, or "
            "picked at random, or `deterministic=False`: examples may come twice or not at all in an epoch. Use "
            "tfdp.data.shard, or give `shuffle` a seed and call tf.random.set_seed or keras.utils.set_random_seed with "
            "the same number on all workers."
        )
    options = tf.data.Options()
    options.deterministic = True
    if dataset.options().experimental_distribute.auto_shard_policy == tf.data.experimental.AutoShardPolicy.AUTO:
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return dataset.with_options(options)


def _on_split_batch(
    reducer_of: ReducerOf,
    original: Callable[..., Any],
    trainer: Any,
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    class_weight: Any = None,
    **kwargs: Any,
) -> Any:
    """Trains or tests on one global batch, of which every replica takes its part: Keras gives each the whole."""
    strategy = trainer.distribute_strategy
    reducer = reducer_of(strategy)
    if class_weight is not None:
        kwargs["class_weight"] = class_weight
    if reducer is None or reducer.num_replicas == 1:
        return original(trainer, x, y=y, sample_weight=sample_weight, **kwargs)
    if class_weight is not None and sample_weight is None:
        sample_weight = data_adapter_utils.class_weight_to_sample_weights(y, kwargs.pop("class_weight"))
    _enter_first(trainer, original.__name__)
    x, y, sample_weight = (_split_rows(strategy, part) for part in (x, y, sample_weight))
    return_dict = kwargs.pop("return_dict", False)
    logs = original(trainer, x, y=y, sample_weight=sample_weight, return_dict=True, **kwargs)
    # Keras gives the mean of the replicas' results, as if each had as many rows.
    exact = {name: float(value) for name, value in trainer.get_metrics_result().items() if not hasattr(value, "items")}
    logs = {name: exact.get(name, value) for name, value in logs.items()}
    if original.__name__ == "test_on_batch":  # many others follow upon one of train_on_batch
        calls.leave(strategy)
    return logs if return_dict else trainer._flatten_metrics_in_order(logs)


def _enter_first(trainer: Any, call: str) -> None:
    """Lets all workers make the first call of a kind together; each of many would cost a round trip."""
    entered = vars(trainer).setdefault("_tfdp_entered", set())
    if call not in entered:
        trainer.distribute_strategy.everyones(f"the start of `{call}`", None)
        entered.add(call)


def _predict_on_split_batch(reducer_of: ReducerOf, original: Callable[..., Any], trainer: Any, x: Any) -> Any:
    strategy = trainer.distribute_strategy
    reducer = reducer_of(strategy)
    if reducer is None or reducer.num_replicas == 1:
        return original(trainer, x)
    _enter_first(trainer, original.__name__)
    predictions = original(trainer, _split_rows(strategy, x))
    calls.leave(strategy)
    return predictions


def _split_rows(strategy: tf.distribute.Strategy, batch: Any) -> Any:
    """Returns `batch` with each array split over all replicas, in the order in which Keras joins predictions."""
    size = strategy.num_replicas_in_sync
    local = len(strategy.extended.worker_devices)
    workers = size // local

    def part(array: Any, replica_id: int) -> tf.Tensor:
        position = replica_id % local * workers + replica_id // local
        array = (
            array if isinstance(array, tf.Tensor | tf.RaggedTensor | tf.SparseTensor) else tf.convert_to_tensor(array)
        )
        num_rows = int(array.shape[0])
        bounds = np.linspace(0, num_rows, size + 1).astype(int)
        begin, end = int(bounds[position]), int(bounds[position + 1])
        if isinstance(array, tf.SparseTensor):
            rest = [int(d) for d in array.shape[1:]]
            return tf.sparse.slice(array, [begin, *[0] * len(rest)], [end - begin, *rest])
        return array[begin:end]

    def split(array: Any) -> Any:
        if array is None or not getattr(array, "shape", None):
            return array
        return strategy.experimental_distribute_values_from_function(
            lambda context: part(array, context.replica_id_in_sync_group)
        )

    return tf.nest.map_structure(split, batch)


# Building: from what one replica will see.


def _build_for_replicas(
    reducer_of: ReducerOf,
    original: Callable[..., Any],
    trainer: Any,
    iterator: Any = None,
    data_batch: Any = None,
) -> None:
    """Builds the model's variables from one replica's batch.

    Keras reduces a whole first batch over the replicas for its shapes. That fails for odd batches, strings and
    several workers, and takes data that a one-shot iterator does not give again.
    """
    strategy = trainer._distribute_strategy
    if strategy is None or reducer_of(strategy) is None:
        original(trainer, iterator=iterator, data_batch=data_batch)
        return
    optimizer = getattr(trainer, "optimizer", None)
    if optimizer and getattr(optimizer, "_distribution_strategy", strategy) is not strategy:
        raise _created_outside(f"the optimizer {type(optimizer).__name__}")
    if iterator is not None:
        spec = keras.tree.map_structure(_replica_spec, iterator._distributed_dataset.element_spec)
        kinds = tf.TensorSpec | tf.RaggedTensorSpec | tf.SparseTensorSpec
        leaves = keras.tree.flatten(spec)
        if strategy.num_replicas_in_sync > 1:
            _check_ranks(leaves)
        if all(isinstance(leaf, kinds) and leaf.shape.rank is not None for leaf in leaves):
            data_batch = spec
        else:
            *_, batches = next(iter(iterator))  # older Keras gives a step less
            data_batch = next(batches)
    if type(trainer).call is keras.Model.call:
        return  # a model that only has steps of its own
    with strategy.scope():
        trainer._symbolic_build(data_batch=keras.tree.map_structure(functools.partial(_local, strategy), data_batch))


def _local(strategy: tf.distribute.Strategy, value: Any) -> Any:
    return None if value is None else strategy.experimental_local_results(value)[0]


def _check_ranks(specs: Sequence[Any]) -> None:
    """Raises a ValueError for tensors of unknown rank, whose batches TensorFlow does not split reliably."""
    if any(isinstance(spec, tf.TensorSpec) and spec.shape.rank is None for spec in specs):
        raise ValueError(
            "Under several replicas a data set must tell the ranks of its tensors, so that its batches can be split. "
            "With tf.data.Dataset.from_generator give `output_signature`, with shapes such as (None, 8). "
            f"Received: {[spec for spec in specs if isinstance(spec, tf.TensorSpec)]}."
        )


def _replica_spec(spec: Any) -> Any:
    return spec._value_specs[0] if hasattr(spec, "_value_specs") else spec


def _active_reducer(reducer_of: ReducerOf) -> GradientReducer | None:
    return reducer_of(tf.distribute.get_strategy()) if tf.distribute.get_replica_context() is not None else None


def _with_share(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `function` for a replica's new thread, with the share that its thread before had."""

    def call(share: shares.Share | None, *args: Any) -> Any:
        with shares.setting(shares.current, share), shares.setting(_in_trainer_step, True):
            return function(*args)

    return call


def _after(result: Any) -> tf.Tensor:
    del result
    return tf.constant(0)
