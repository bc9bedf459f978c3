"""CSV files: each row a dict from the names of the columns to scalars."""

import csv
import itertools
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence

import tensorflow as tf

from tfdp.data.formats import Format, compression_of, each

_NUM_ROWS = 10_000  # that are looked at to tell the types of the columns
_NUM_FIRST_BYTES = 65_536  # that are looked at to tell how lines end
_MOST_SHOWN = 100  # characters of a line, in messages
_NUM_AT_ONCE = 256  # lines that are decoded
_INTEGER = re.compile(r"\s*[+-]?\d+\s*")
_FLOAT = re.compile(r"\s*[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|nan|inf(inity)?)\s*", re.IGNORECASE)


class Csv(Format):
    """CSV files that begin with the same row of names of columns, or are empty.

    A column is int64, float32, float64 or string, by the first 10,000 rows of the first file that has rows. What is
    missing is NaN or "". Whole numbers keep their value: a column of them is float64 where some are missing, and one of
    numbers that float64 or int64 would change is string.

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
    if b"\r" in _begin(name).partition(b"\n")[0].removesuffix(b"\r"):
        raise ValueError(
            f'Rows of CSV files must end with "\\n" or "\\r\\n". Received: {name!r}, where they end with "\\r". '
            "Convert it, such as with `tr '\\r' '\\n'`."
        )
    return [] if line is None else _cells(name, line.decode("utf-8-sig", "replace"))


def _begin(name: str) -> bytes:
    """Returns the first bytes as they are; TensorFlow leaves out each carriage return of a line."""
    with tf.io.gfile.GFile(name, "rb") as file:
        begin = file.read(_NUM_FIRST_BYTES)
    is_compressed = bool(compression_of(tf.constant(name)))
    return zlib.decompressobj(zlib.MAX_WBITS | 32).decompress(begin) if is_compressed and begin else begin


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
        shown = repr(line if len(line) <= _MOST_SHOWN else f"{line[:_MOST_SHOWN]}...")
        if "field limit" in str(error):
            raise ValueError(
                f"Cells of CSV files must have at most {csv.field_size_limit():,} characters. Received: {shown} in "
                f"{name!r}. Write such data as TFRecord or Parquet files."
            ) from error
        raise ValueError(
            f"Rows of CSV files must be single lines, with quotes around whole cells. Received: {shown} in {name!r}."
        ) from error


def _default(cells: Iterable[str]) -> tf.Tensor:
    """Returns what stands for a missing cell of a column, of the type of the column; empty where none may miss."""
    cells = list(cells)
    present = [cell for cell in cells if cell]
    whole = [abs(int(cell)) for cell in present if _INTEGER.fullmatch(cell)]
    largest = max(whole, default=0)
    if present and len(whole) == len(cells) and largest < 2**63:
        return tf.constant([], tf.int64)
    if present and all(map(_FLOAT.fullmatch, present)) and largest <= 2**53:
        # Of a column of whole numbers with gaps, rows that were not looked at may be larger.
        keeps = len(whole) < len(present) and largest <= 2**24
        return tf.constant([float("nan")], tf.float32 if keeps else tf.float64)
    return tf.constant([""], tf.string)


def _no_header(name: str) -> str:
    return f"CSV files must begin with a row of names of columns. Received: {name!r} without one."
