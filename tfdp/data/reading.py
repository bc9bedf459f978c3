"""What users give as data, as a source of examples."""

import collections.abc
import os
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdp import tf_seam
from tfdp.data.sources import Arrays, Source, Stream
from tfdp.tf_seam import Peeled

_NOTHING = Peeled(None, (), 0)


def as_source(dataset: Any, split: str | None = None, *, num_workers: int = 1) -> tuple[Source, Peeled]:
    """Returns a source of examples, and what was taken off a tf.data.Dataset.

    Args:
        dataset: what `tfdp.data.shard` takes.
        split: of a data set of TensorFlow Datasets.
        num_workers: who share it.

    Raises:
        TypeError: it is of no kind that is known.
        ValueError: it cannot be shared.
    """
    if isinstance(dataset, Source):
        return dataset, _NOTHING
    if isinstance(dataset, tf.data.Dataset):
        return _of_dataset(dataset, num_workers)
    if isinstance(dataset, keras.utils.PyDataset):
        return _of_py_dataset(dataset), _NOTHING
    if _is_paths(dataset):
        return _of_names(dataset, split), _NOTHING
    if _is_builder(dataset):
        from tfdp.data.catalog import Catalog

        return Catalog(dataset, split), _NOTHING
    if isinstance(dataset, tf.distribute.DistributedDataset) or hasattr(dataset, "begin_epoch"):
        raise TypeError(f"`dataset` is distributed already: give it to `fit` as it is. Received: {dataset!r}.")
    if isinstance(dataset, collections.abc.Iterator):
        raise TypeError(
            "`dataset` must be a function that returns a new iterator for each epoch, not an iterator, which can be "
            f"read only once. Received: {dataset!r}. Give the function: `shard(generate, ...)`, not "
            "`shard(generate(), ...)`."
        )
    if callable(dataset):
        return _of_function(dataset), _NOTHING
    arrays = tf.nest.map_structure(_as_array, dataset)
    return Arrays(arrays, f"{_kind(dataset)} of arrays" if tf.nest.is_nested(dataset) else _kind(dataset)), _NOTHING


def _of_dataset(dataset: tf.data.Dataset, num_workers: int) -> tuple[Source, Peeled]:
    peeled = tf_seam.peeled(dataset)
    if peeled.has_own_order and num_workers > 1:
        raise ValueError(
            "`dataset` must have the same order on all workers. Received: a tf.data.Dataset that is shuffled without a "
            "seed, in a place from which it cannot be taken. Leave `shuffle` out and give `shuffle_buffer` to "
            "tfdp.data.shard, or give `shuffle` a `seed`."
        )
    inner = peeled.inner.unbatch() if peeled.gives_batches else peeled.inner
    return Stream(inner, "a tf.data.Dataset"), peeled


def _of_py_dataset(dataset: keras.utils.PyDataset) -> Source:
    if dataset.num_batches is None:
        raise ValueError("`dataset` must end. Received: a PyDataset without a length.")
    signature = tf.nest.map_structure(_spec_of_rows, _as_tuple(dataset[0]))

    def batches() -> Any:
        for index in range(dataset.num_batches):
            yield tf.nest.map_structure(np.asarray, _as_tuple(dataset[index]))

    examples = tf.data.Dataset.from_generator(batches, output_signature=signature).unbatch()
    return Stream(examples, f"the PyDataset {type(dataset).__name__}")


def _of_function(function: Any) -> Source:
    first = next(iter(function()), None)
    if first is None:
        raise ValueError(f"`dataset` must give at least one example. Received: {function!r}, which gives none.")
    first = tf.nest.map_structure(np.asarray, _as_tuple(first))
    signature = tf.nest.map_structure(lambda array: tf.TensorSpec(array.shape, _dtype_of(array)), first)

    def examples() -> Any:
        for example in function():
            yield _as_tuple(example)

    name = getattr(function, "__name__", type(function).__name__)
    return Stream(tf.data.Dataset.from_generator(examples, output_signature=signature), f"the generator {name}")


def _of_names(names: Any, split: str | None) -> Source:
    from tfdp.data.catalog import Catalog
    from tfdp.data.files import Files, looks_like_files

    if isinstance(names, str) and not looks_like_files(names):
        return Catalog(names, split)
    return Files([names] if isinstance(names, str | os.PathLike) else list(names))


def _is_paths(dataset: Any) -> bool:
    if isinstance(dataset, str | os.PathLike):
        return True
    return (
        isinstance(dataset, list | tuple) and bool(dataset) and all(isinstance(i, str | os.PathLike) for i in dataset)
    )


def _is_builder(dataset: Any) -> bool:
    return hasattr(dataset, "as_dataset") and hasattr(dataset, "info")


def _as_tuple(element: Any) -> Any:
    """Returns an element with tuples for lists at its top, as TensorFlow and Keras read it."""
    return tuple(element) if isinstance(element, list) else element


def _spec_of_rows(batch: Any) -> tf.TensorSpec:
    array = np.asarray(batch)
    return tf.TensorSpec([None, *array.shape[1:]], _dtype_of(array))


def _dtype_of(array: np.ndarray) -> tf.DType:
    return tf.string if array.dtype.kind in "OUS" else tf.as_dtype(array.dtype)


def _as_array(leaf: Any) -> Any:
    if hasattr(leaf, "to_numpy"):  # of pandas
        leaf = leaf.to_numpy()
    if isinstance(leaf, tf.Tensor | tf.RaggedTensor | tf.SparseTensor | np.ndarray):
        return leaf
    if hasattr(leaf, "__array__"):
        return np.asarray(leaf)
    raise TypeError(
        "`dataset` must be a tf.data.Dataset, arrays or tensors, pandas objects, a keras.utils.PyDataset, a function "
        "that returns an iterator, names of files, or a data set of TensorFlow Datasets. Received: "
        f"{leaf!r} of type {type(leaf).__name__}."
    )


def _kind(dataset: Any) -> str:
    return f"a {type(dataset).__name__}"
