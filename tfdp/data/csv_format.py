"""CSV files: each row a dict from the names of the columns to scalars."""

import csv
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence

import tensorflow as tf

from tfdp.data.formats import Format, compression_of, each

_NUM_ROWS = 10_000  # that are looked at to tell the types of the columns
_NUM_AT_ONCE = 256  # lines that are decoded
_INTEGER = re.compile(r"\s*[+-]?\d{1,18}\s*")
_FLOAT = re.compile(r"\s*[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|nan|inf(inity)?)\s*", re.IGNORECASE)


class Csv(Format):
    """CSV files that begin with the same row of names of columns, or are empty.

    A column is int64, float32 or string, by the first 10,000 rows of the first file that has rows. What is missing is
    NaN or "", and no column of integers.

    Args:
        names: of all files.

    Raises:
        ValueError: a file has no row of names, or another one than the first.
    """

    def __init__(self, names: Sequence[str]) -> None:
        headers = each(_header, names)
        self._columns: list[str] = next((header for header in headers if header), [])
        if not self._columns:
            raise ValueError(_no_header(names[0]))
        if len(set(self._columns)) < len(self._columns):
            raise ValueError(f"Columns of CSV files must have names of their own. Received: {self._columns}.")
        for name, header in zip(names, headers, strict=True):
            if header and header != self._columns:
                raise ValueError(
                    f"All CSV files must have the same columns. Received: {self._columns} and, in {name!r}, {header}."
                )
        rows = next(filter(None, (_rows(name) for name in names)), [])
        for row in rows:
            if len(row) != len(self._columns):
                raise ValueError(
                    f"Rows of CSV files must have a cell for each of the {len(self._columns)} columns. Received: {row}."
                )
        cells = zip(*rows, strict=True) if rows else [[]] * len(self._columns)
        self._defaults = [_default(column) for column in cells]

    def examples(self, name: tf.Tensor) -> tf.data.Dataset:
        lines = tf.data.TextLineDataset(name, compression_of(name)).skip(1)
        return lines.batch(_NUM_AT_ONCE).map(self._decoded).unbatch()  # much faster than line by line

    def _decoded(self, lines: tf.Tensor) -> dict[str, tf.Tensor]:
        rows = tf.boolean_mask(lines, tf.strings.length(lines) > 0)
        return dict(zip(self._columns, tf.io.decode_csv(rows, self._defaults), strict=True))


def _header(name: str) -> list[str]:
    """Returns the names of the columns; none where the file is empty."""
    line = next(_lines(name), None)
    if line == b"":
        raise ValueError(_no_header(name))
    return [] if line is None else _cells(name, line.decode("utf-8-sig", "replace"))


def _rows(name: str) -> list[list[str]]:
    """Returns the cells of the first rows."""
    lines = itertools.islice(_lines(name), 1, 1 + _NUM_ROWS)
    return [_cells(name, line.decode("utf-8", "replace")) for line in lines if line]


def _lines(name: str) -> Iterator[bytes]:
    return tf.data.TextLineDataset(name, compression_of(tf.constant(name))).as_numpy_iterator()


def _cells(name: str, line: str) -> list[str]:
    try:
        return next(csv.reader([line], strict=True))
    except csv.Error as error:
        raise ValueError(
            f"Rows of CSV files must be single lines, with quotes around whole cells. Received: {line!r} in {name!r}."
        ) from error


def _default(cells: Iterable[str]) -> tf.Tensor:
    """Returns what stands for a missing cell of a column, of the type of the column; empty where none may miss."""
    cells = list(cells)
    present = [cell for cell in cells if cell]
    if present and all(map(_INTEGER.fullmatch, cells)):
        return tf.constant([], tf.int64)
    if present and all(map(_FLOAT.fullmatch, present)):
        return tf.constant([float("nan")], tf.float32)
    return tf.constant([""], tf.string)


def _no_header(name: str) -> str:
    return f"CSV files must begin with a row of names of columns. Received: {name!r} without one."
