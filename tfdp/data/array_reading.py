"""What users give as arrays, as tensors with an axis of examples, and nothing in them changed or lost."""

from typing import Any

import numpy as np
import tensorflow as tf


def as_arrays(dataset: Any) -> Any:
    """Returns arrays, tensors or objects of pandas, or a nest of them, as arrays or tensors.

    Raises:
        TypeError: something is of another kind, or holds what no tensor can.
        ValueError: values are masked, which no tensor can tell.
    """
    return tf.nest.map_structure(_as_array, dataset)


def _as_array(leaf: Any) -> Any:
    if hasattr(leaf, "to_numpy"):  # of pandas
        leaf = _of_pandas(leaf)
    if isinstance(leaf, np.ma.MaskedArray) and np.ma.is_masked(leaf):
        raise ValueError(
            "`dataset` must hold no masked values, which a tensor would show. Received: an array with "
            f"{int(np.ma.count_masked(leaf))} masked of {leaf.size}. Fill them (`array.filled(...)`), and give sample "
            "weights of 0 where they must not count."
        )
    if isinstance(leaf, tf.Tensor | tf.RaggedTensor | tf.SparseTensor):
        return leaf
    if isinstance(leaf, np.ndarray):
        return _checked(np.asarray(leaf), "an array")
    if hasattr(leaf, "__array__"):
        return _checked(np.asarray(leaf), f"a {type(leaf).__name__}")
    raise TypeError(
        "`dataset` must be a tf.data.Dataset, arrays or tensors, pandas objects, a keras.utils.PyDataset, a function "
        "that returns an iterator, names of files, or a data set of TensorFlow Datasets. Received: "
        f"{leaf!r} of type {type(leaf).__name__}."
    )


def _of_pandas(frame: Any) -> np.ndarray:
    """Returns a frame, series or index as an array; raises where its columns have no type in common."""
    columns: Any = getattr(frame, "dtypes", None)
    if hasattr(columns, "items"):
        odd = [(name, dtype) for name, dtype in columns.items() if not _is_number(dtype)]
        strings = all(str(dtype) in ("object", "string", "str") for _, dtype in odd)
        if odd and (len(odd) < len(columns) or not strings):
            name, dtype = odd[0]
            raise TypeError(
                f"The columns of a frame must be numbers, or all strings, to be an array. Received: column {name!r} of "
                f"{dtype}. Give a dict of columns, `dict(frame)`, each as numbers or strings."
            )
    return _checked(np.asarray(frame.to_numpy()), _said(frame))


def _is_number(dtype: Any) -> bool:
    return getattr(dtype, "kind", "") in "biuf" and isinstance(dtype, np.dtype)


def _checked(array: np.ndarray, what: str) -> np.ndarray:
    if array.dtype.kind in "Mm":
        raise TypeError(
            f"`dataset` must hold numbers, booleans or strings. Received: {what} of {array.dtype}. Convert times to "
            "numbers, such as seconds: `times.astype('datetime64[s]').astype('int64')`."
        )
    if array.dtype.kind != "O":
        return array
    odd = next((value for value in array.flat if not isinstance(value, str | bytes)), None)
    if any(not isinstance(value, str | bytes) for value in array.flat):
        raise TypeError(
            f"`dataset` must hold numbers, booleans or strings without gaps. Received: {what} of objects, such as "
            f"{odd!r} of type {type(odd).__name__}. Fill what is missing, and convert it, such as with "
            "`.fillna(...).astype('float32')`."
        )
    return array


def _said(frame: Any) -> str:
    name = getattr(frame, "name", None)
    return f"the {type(frame).__name__} {name!r}" if isinstance(name, str) else f"a {type(frame).__name__}"
