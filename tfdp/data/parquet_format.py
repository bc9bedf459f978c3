"""Parquet files: each row a dict from the names of the columns to scalars or vectors."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import tensorflow as tf

from tfdp.data.formats import Format, each

_NUM_ROWS = 64  # that are taken from a row group at once


class Parquet(Format):
    """Parquet files of the same columns: of numbers, booleans, strings, or lists of numbers of one length.

    Numbers keep their types. A missing number is NaN, and a missing string "". A row group is in memory at a time for
    each file that is read.

    Args:
        names: of all files.

    Raises:
        ValueError: columns are of another kind, or not the same in all files.
    """

    def __init__(self, names: Sequence[str]) -> None:
        schemas = each(_columns, names)
        self._columns = schemas[0][0]
        for name, (columns, _) in zip(names, schemas, strict=True):
            if columns != self._columns:
                raise ValueError(
                    f"All Parquet files must have the same columns. Received: {_said(self._columns)} in {names[0]!r}, "
                    f"and {_said(columns)} in {name!r}."
                )
        self.num_examples = sum(num_rows for _, num_rows in schemas)
        with_rows = next((name for name, (_, num_rows) in zip(names, schemas, strict=True) if num_rows), names[0])
        first: dict[str, np.ndarray] = next(_batches(with_rows), {})
        self._signature = {
            column: tf.TensorSpec(_shape(kind, first.get(column)), _dtype(with_rows, column, kind))
            for column, kind in self._columns.items()
        }
        if not self._signature:
            raise ValueError(f"Parquet files must have columns. Received: {names[0]!r} without any.")

    def examples(self, name: tf.Tensor) -> tf.data.Dataset:
        batches = tf.data.Dataset.from_generator(self._checked, output_signature=self._signature, args=(name,))
        return batches.unbatch()

    def _checked(self, name: bytes) -> Iterator[dict[str, np.ndarray]]:
        for batch in _batches(name.decode()):
            for column, values in batch.items():
                expected = self._signature[column].shape
                if not expected.is_compatible_with(values.shape):
                    raise ValueError(_unequal(name.decode(), column, f"{expected[1]} and {values.shape[1]}"))
            yield batch


def _columns(name: str) -> tuple[dict[str, Any], int]:
    """Returns the types of a file's columns, and the number of its rows."""
    with pq.ParquetFile(name) as file:
        schema = file.schema_arrow
        if len(set(schema.names)) < len(schema.names):
            raise ValueError(
                f"Columns of Parquet files must have names of their own. Received: {schema.names} in {name!r}."
            )
        return dict(zip(schema.names, map(_plain, schema.types), strict=True)), file.metadata.num_rows


def _batches(name: str) -> Iterator[dict[str, np.ndarray]]:
    """Yields the rows of a file, some at a time: an array [rows] or [rows, length of lists] for each column."""
    with pq.ParquetFile(name) as file:
        for group in range(file.num_row_groups):
            for batch in file.iter_batches(_NUM_ROWS, row_groups=[group]):
                columns = zip(batch.schema.names, batch.columns, strict=True)
                if batch.num_rows:
                    yield {column: _values(name, column, array) for column, array in columns}


def _values(name: str, column: str, array: Any) -> np.ndarray:
    _dtype(name, column, _plain(array.type))  # raises where the column cannot be read
    if _plain(array.type) != array.type:
        array = array.dictionary_decode()
    if _is_list(array.type) and not array.null_count:
        lengths = pc.unique(pc.list_value_length(array)).to_pylist()
        if lengths != [lengths[0] or 1]:  # tf.data's `unbatch` ends the process where elements have no values
            raise ValueError(_unequal(name, column, " and ".join(map(str, sorted(lengths)[:2]))))
        return _values(name, column, array.flatten()).reshape(len(array), -1)
    if array.null_count and _dtype(name, column, array.type) is tf.string:
        array = array.fill_null("" if pa.types.is_string(array.type) or pa.types.is_large_string(array.type) else b"")
    if array.null_count and not pa.types.is_floating(array.type):
        raise ValueError(
            f"Only floats and strings of Parquet files may be missing. Received: column {column!r} of {name!r}, of "
            f"type {array.type}, with {array.null_count} missing of {len(array)}."
        )
    return array.to_numpy(zero_copy_only=False)


def _plain(kind: Any) -> Any:
    """Returns the type of a column's values, where they are kept as positions in a dictionary."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _is_list(kind: Any) -> bool:
    return any(is_one(kind) for is_one in (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list))


def _dtype(name: str, column: str, kind: Any) -> tf.DType:
    types = pa.types
    element = kind.value_type if _is_list(kind) else kind
    if types.is_integer(element) or types.is_floating(element) or types.is_boolean(element):
        return tf.as_dtype(element.to_pandas_dtype())
    strings = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    if element is kind and any(is_one(kind) for is_one in strings):
        return tf.string
    raise ValueError(
        "Columns of Parquet files must hold numbers, booleans, strings, or lists of numbers of one length. Received: "
        f"column {column!r} of {name!r}, of type {kind}."
    )


def _shape(kind: Any, values: np.ndarray | None) -> list[int | None]:
    """Returns the shape of some rows of a column; `values` are the first ones, if there are any."""
    if not _is_list(kind):
        return [None]
    if pa.types.is_fixed_size_list(kind):
        return [None, kind.list_size]
    return [None, None if values is None else values.shape[1]]


def _unequal(name: str, column: str, received: str) -> str:
    return (
        f"Lists of a column of Parquet files must have one length, of at least 1. Received: {received} values in "
        f"column {column!r} of {name!r}."
    )


def _said(columns: dict[str, Any]) -> str:
    return ", ".join(f"{column} ({kind})" for column, kind in columns.items())
