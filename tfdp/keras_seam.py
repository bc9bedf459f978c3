"""The only module that touches private names of Keras: where gradients leave, and how a model is built for replicas.

Every name is used in `tests/test_seams.py`, which fails with a readable message when Keras moves one.
"""

import contextvars
import functools
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.tensorflow import optimizer as keras_optimizer
from keras.src.backend.tensorflow import trainer as keras_trainer

Reduce = Callable[[Any, Sequence[Any], Sequence[Any]], list[Any]]

# The private names that tfdp replaces or calls, by the class that has them.
PRIVATE_NAMES = {
    keras_optimizer.TFOptimizer: ("_backend_apply_gradients", "_backend_update_step", "_all_reduce_sum_gradients"),
    keras_trainer.TensorFlowTrainer: ("_maybe_symbolic_build", "_symbolic_build"),
}

_gradients_are_reduced = contextvars.ContextVar("gradients_are_reduced", default=False)


def check() -> None:
    """Raises a RuntimeError that names what is missing where Keras has not got the names that tfdp builds on."""
    missing = [
        f"{owner.__module__}.{owner.__name__}.{name}"
        for owner, names in PRIVATE_NAMES.items()
        for name in names
        if not callable(getattr(owner, name, None))
    ]
    if missing:
        raise RuntimeError(
            f"tfdp builds on names of Keras that Keras {keras.__version__} does not have: {', '.join(missing)}. "
            "Use a version of Keras that tfdp supports (3.8 to 3.15), or report this to tfdp."
        )


def install(reduce_of: Callable[[tf.distribute.Strategy], Reduce | None]) -> None:
    """Makes Keras's optimizers reduce, and its trainers build, through tfdp under strategies of tfdp; nowhere else.

    Doing it again changes nothing.

    Args:
        reduce_of: returns how a strategy reduces (optimizer, gradients, variables), or None for one that is not tfdp's.
    """
    check()
    optimizer, trainer = keras_optimizer.TFOptimizer, keras_trainer.TensorFlowTrainer
    _replace(optimizer, "_backend_apply_gradients", functools.partial(_reduce_then_apply, reduce_of))
    _replace(optimizer, "_all_reduce_sum_gradients", functools.partial(_reduce_unless_reduced, reduce_of))
    _replace(trainer, "_maybe_symbolic_build", functools.partial(_build_for_replicas, reduce_of))


def _replace(owner: type, name: str, replacement: Callable[..., Any]) -> None:
    """Replaces a method by `replacement(original, self, ...)`, once."""
    original = getattr(owner, name)
    if hasattr(original, "replaced_by_tfdp"):
        return

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return replacement(original, self, *args, **kwargs)

    method.replaced_by_tfdp = original  # type: ignore[attr-defined]
    setattr(owner, name, method)


def _active_reduce(reduce_of: Callable[[tf.distribute.Strategy], Reduce | None]) -> Reduce | None:
    return reduce_of(tf.distribute.get_strategy()) if tf.distribute.get_replica_context() is not None else None


def _reduce_then_apply(
    reduce_of: Callable[[tf.distribute.Strategy], Reduce | None],
    original: Callable[..., Any],
    optimizer: Any,
    gradients: Sequence[Any],
    variables: Sequence[Any],
) -> Any:
    """Sums the gradients over all replicas before Keras clips, decays and updates: what one device would do.

    Keras clips each replica's own gradient and sums afterwards.
    """
    reduce = _active_reduce(reduce_of)
    if reduce is None or optimizer.gradient_accumulation_steps:
        return original(optimizer, gradients, variables)
    gradients = reduce(optimizer, gradients, variables)
    token = _gradients_are_reduced.set(True)
    try:
        return original(optimizer, gradients, variables)
    finally:
        _gradients_are_reduced.reset(token)


def _reduce_unless_reduced(
    reduce_of: Callable[[tf.distribute.Strategy], Reduce | None],
    original: Callable[..., Any],
    optimizer: Any,
    grads_and_vars: Sequence[tuple[Any, Any]],
) -> list[tuple[Any, Any]]:
    reduce = _active_reduce(reduce_of)
    if reduce is None:
        return original(optimizer, grads_and_vars)
    pairs = list(grads_and_vars)
    if _gradients_are_reduced.get():
        return pairs
    present = [(gradient, variable) for gradient, variable in pairs if gradient is not None]
    reduced = iter(reduce(optimizer, *map(list, zip(*present, strict=True))) if present else ())
    return [(None if gradient is None else next(reduced), variable) for gradient, variable in pairs]


def _build_for_replicas(
    reduce_of: Callable[[tf.distribute.Strategy], Reduce | None],
    original: Callable[..., Any],
    trainer: Any,
    iterator: Any = None,
    data_batch: Any = None,
) -> None:
    """Builds the model's variables from what one replica will see.

    Keras reduces a whole first batch over the replicas for its shapes. That fails for odd batches, strings and
    several workers, and takes data that a one-shot iterator does not give again.
    """
    strategy = trainer._distribute_strategy
    if strategy is None or reduce_of(strategy) is None or iterator is None:
        original(trainer, iterator=iterator, data_batch=data_batch)
        return
    data_batch = _batch_spec(iterator)
    if data_batch is None:
        _, _, batches = next(iter(iterator))
        data_batch = tf.nest.map_structure(lambda values: strategy.experimental_local_results(values)[0], next(batches))
    with strategy.scope():
        trainer._symbolic_build(data_batch=data_batch)


def _batch_spec(iterator: Any) -> Any:
    """Returns the spec of one replica's batch, or None where the data set does not tell the ranks of its tensors."""
    spec = keras.tree.map_structure(_replica_spec, iterator._distributed_dataset.element_spec)
    known = (
        isinstance(leaf, tf.TensorSpec | tf.RaggedTensorSpec | tf.SparseTensorSpec) and leaf.shape.rank is not None
        for leaf in keras.tree.flatten(spec)
    )
    return spec if all(known) else None


def _replica_spec(spec: Any) -> Any:
    return spec._value_specs[0] if hasattr(spec, "_value_specs") else spec
