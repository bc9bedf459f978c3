"""Examples that Python gives: the batches of a PyDataset, or what a generator yields."""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdp.data.sources import Source, Stream


class PyBatches(Source):
    """The examples of a `keras.utils.PyDataset`, whose hooks are called once an epoch.

    Its `workers` and `use_multiprocessing` have no effect: tf.data reads it, ahead of the training, in one thread.

    Args:
        dataset: with a length.

    Raises:
        ValueError: it has no length, or no batch.
    """

    changes = True

    def __init__(self, dataset: keras.utils.PyDataset) -> None:
        if dataset.num_batches is None:
            raise ValueError("`dataset` must end. Received: a PyDataset without a length.")
        if not dataset.num_batches:
            raise ValueError("`dataset` must hold at least one batch. Received: a PyDataset of length 0.")
        self.name = f"the PyDataset {type(dataset).__name__}"
        self._dataset = dataset
        self._begun = self._ended = 0  # epochs
        first = tf.nest.map_structure(np.asarray, _element(dataset[0], self.name))
        self._signature = tf.nest.map_structure(_spec_of_rows, first)

    def examples(self, parts: Sequence[int] | None = None) -> tf.data.Dataset:
        del parts

        def batches() -> Any:
            for index in range(self._dataset.num_batches):
                yield _fitting(_element(self._dataset[index], self.name), self._signature, self.name)

        return tf.data.Dataset.from_generator(batches, output_signature=self._signature).unbatch()

    def in_epoch(self, seed: int, epoch: int) -> Source:
        """Returns itself, after the hooks of all epochs before, on which the order may depend."""
        del seed
        if epoch:
            self.end_epoch(epoch - 1)
        if self._begun <= epoch:
            self._dataset.on_epoch_begin()
            self._begun += 1
        return self

    def end_epoch(self, epoch: int) -> None:
        while self._ended <= epoch:
            if self._begun == self._ended:
                self._dataset.on_epoch_begin()
                self._begun += 1
            self._dataset.on_epoch_end()
            self._ended += 1

    def fingerprint(self) -> list[Any]:
        """Returns what workers must have alike in an epoch: the length, and the first batch unless it is random."""
        first, again = (_digest(_element(self._dataset[0], self.name)) for _ in range(2))
        return [self._dataset.num_batches, first if first == again else ""]


def generated(function: Callable[[], Any]) -> Source:
    """Returns the examples that each call of `function` yields.

    Raises:
        ValueError: it yields none.
    """
    name = f"the generator {getattr(function, '__name__', type(function).__name__)}"
    first = next(iter(function()), None)
    if first is None:
        raise ValueError(f"`dataset` must give at least one example. Received: {function!r}, which gives none.")
    first = tf.nest.map_structure(np.asarray, _element(first, name))
    signature = tf.nest.map_structure(lambda array: tf.TensorSpec(array.shape, _dtype_of(array, name)), first)

    def examples() -> Any:
        for example in function():
            yield _fitting(_element(example, name), signature, name)

    return Stream(tf.data.Dataset.from_generator(examples, output_signature=signature), name)


def _element(element: Any, name: str) -> Any:
    """Returns an element with tuples for lists at its top and arrays for lists of numbers within, as Keras reads it."""
    if isinstance(element, list):
        element = tuple(element)
    if isinstance(element, tuple) and type(element) is tuple:
        return tuple(_component(part, name) for part in element)
    return _component(element, name)


def _component(part: Any, name: str) -> Any:
    if part is None:
        raise TypeError(f"Examples must hold no None. Received: one of {name}. Leave it out of the tuple.")
    if isinstance(part, tf.RaggedTensor | tf.SparseTensor):
        raise TypeError(
            f"Examples that Python gives must be dense arrays. Received: a {type(part).__name__} of {name}. Give a "
            "tf.data.Dataset (from_generator with `output_signature`, say), or `.to_tensor()`."
        )
    if isinstance(part, dict):
        return {key: _component(value, name) for key, value in part.items()}
    if isinstance(part, list | tuple):
        if all(isinstance(leaf, int | float | bool | str | bytes | np.generic) for leaf in tf.nest.flatten(part)):
            return np.asarray(part)
        return tuple(_component(value, name) for value in part)
    return part


def _fitting(element: Any, signature: Any, name: str) -> Any:
    """Returns an element as arrays of the types of the first one; raises rather than change a value."""
    tf.nest.assert_same_structure(signature, element)
    return tf.nest.map_structure(lambda spec, leaf: _as_type(leaf, spec.dtype, name), signature, element)


def _as_type(leaf: Any, dtype: tf.DType, name: str) -> np.ndarray:
    array, wanted = np.asarray(leaf), dtype.as_numpy_dtype
    if dtype == tf.string or array.dtype == wanted:
        return array
    if array.dtype.kind not in "OUSMm" and np.can_cast(array.dtype, wanted, "same_kind"):
        kept = array.astype(wanted)
        if kept.dtype.kind not in "iu" or np.array_equal(kept, array):
            return kept
    remedy = array.dtype.name if array.dtype.kind in "iuf" else "float32"
    raise ValueError(
        f"All examples of {name} must be of the types of the first one. Received: {array.dtype.name} "
        f"{np.array2string(array, threshold=5)}, where the first one was {dtype.name}. Convert all of them, such as "
        f"with np.{remedy}(...)."
    )


def _spec_of_rows(array: np.ndarray) -> tf.TensorSpec:
    if not array.ndim:
        raise ValueError("A PyDataset must give batches, with an axis of examples. Received: a scalar.")
    return tf.TensorSpec([None, *array.shape[1:]], _dtype_of(array, "the PyDataset"))


def _dtype_of(array: np.ndarray, name: str) -> tf.DType:
    if array.dtype.kind == "O" and not all(isinstance(value, str | bytes) for value in array.flat):
        raise TypeError(f"Examples must be numbers, booleans or strings. Received: {array.flat[0]!r} of {name}.")
    return tf.string if array.dtype.kind in "OUS" else tf.as_dtype(array.dtype)


def _digest(element: Any) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for leaf in tf.nest.flatten(element):
        array = np.asarray(leaf)
        digest.update(repr(array.shape).encode())
        digest.update(repr(array.tolist()).encode() if array.dtype.kind == "O" else array.tobytes())
    return digest.hexdigest()
