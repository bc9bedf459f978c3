"""What users give as data, as a source of examples."""

import collections.abc
import os
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdp import tf_seam
from tfdp.data.array_reading import as_arrays
from tfdp.data.python_sources import PyBatches, generated
from tfdp.data.sources import Arrays, Source, Stream
from tfdp.tf_seam import Peeled

_NOTHING = Peeled(None, (), 0)


def as_source(
    dataset: Any, split: str | None = None, *, num_workers: int = 1, batched: bool | None = None
) -> tuple[Source, Peeled]:
    """Returns a source of examples, and what was taken off a tf.data.Dataset.

    Args:
        dataset: what `tfdp.data.shard` takes.
        split: of a data set of TensorFlow Datasets.
        num_workers: who share it.
        batched: whether a tf.data.Dataset gives batches; None to tell it by its steps.

    Raises:
        TypeError: it is of no kind that is known.
        ValueError: it cannot be shared.
    """
    if batched is not None and not isinstance(dataset, tf.data.Dataset):
        raise ValueError(
            f"`batched` tells what a tf.data.Dataset gives. Received: batched={batched!r} for a "
            f"{type(dataset).__name__}. Leave it out."
        )
    if isinstance(dataset, np.ndarray) and dataset.dtype.kind == "U" and dataset.ndim == 1 and _name_files(dataset):
        dataset = dataset.tolist()
    if split is not None and not _is_paths(dataset) and not _is_builder(dataset):
        raise _no_split(split, f"a {type(dataset).__name__}")
    return _read(dataset, split, num_workers, batched)


def _no_split(split: Any, what: str) -> ValueError:
    return ValueError(
        f"`split` is of a data set of TensorFlow Datasets. Received: split={split!r} for {what}. Leave it out."
    )


def _read(dataset: Any, split: str | None, num_workers: int, batched: bool | None) -> tuple[Source, Peeled]:
    if isinstance(dataset, Source):
        return dataset, _NOTHING
    if isinstance(dataset, tf.data.Dataset):
        return _of_dataset(dataset, num_workers, batched)
    if isinstance(dataset, keras.utils.PyDataset):
        return PyBatches(dataset), _NOTHING
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
        return generated(dataset), _NOTHING
    arrays = as_arrays(dataset)
    return Arrays(arrays, f"{_kind(dataset)} of arrays" if tf.nest.is_nested(dataset) else _kind(dataset)), _NOTHING


def _of_dataset(dataset: tf.data.Dataset, num_workers: int, batched: bool | None) -> tuple[Source, Peeled]:
    peeled = tf_seam.peeled(dataset, batched=batched)
    if peeled.gives_batches is None:
        raise ValueError(
            "`dataset` must be known to give examples or batches, which the last steps of this tf.data.Dataset do not "
            "tell. Say which to tfdp.data.shard: batched=False (an element is one example) or batched=True (it is "
            f"taken apart along its first axis). Received: elements of {dataset.element_spec}."
        )
    if num_workers > 1 and tf_seam.is_unsettled(peeled.inner):
        raise ValueError(
            "`dataset` must have the same order on all workers. Received: a tf.data.Dataset with functions that leave "
            "its order to chance (a shuffle without a seed, a random filter, or `deterministic=False`), or with a "
            "random choice without a seed. Give a `seed` there, or leave it out and give `shuffle_buffer` to "
            "tfdp.data.shard."
        )
    inner = peeled.inner.unbatch() if peeled.gives_batches else peeled.inner
    return Stream(inner, "a tf.data.Dataset"), peeled


def _of_names(names: Any, split: str | None) -> Source:
    from tfdp.data.catalog import Catalog
    from tfdp.data.files import Files, looks_like_files

    if isinstance(names, str) and not looks_like_files(names):
        return Catalog(names, split)
    if split is not None:
        raise _no_split(split, "files")
    return Files([names] if isinstance(names, str | os.PathLike) else list(names))


def _is_paths(dataset: Any) -> bool:
    if isinstance(dataset, str | os.PathLike):
        return True
    return (
        isinstance(dataset, list | tuple) and bool(dataset) and all(isinstance(i, str | os.PathLike) for i in dataset)
    )


def _name_files(strings: np.ndarray) -> bool:
    """Whether an array of strings is one of names of files that are there, and not of examples."""
    from tfdp.data.formats import kind_of

    return bool(len(strings)) and all(kind_of(name) and tf.io.gfile.exists(name) for name in strings[:2].tolist())


def _is_builder(dataset: Any) -> bool:
    return hasattr(dataset, "as_dataset") and hasattr(dataset, "info")


def _kind(dataset: Any) -> str:
    return f"a {type(dataset).__name__}"
