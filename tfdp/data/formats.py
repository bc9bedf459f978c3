"""What files hold, by the ends of their names: one dataset of examples for each file."""

import abc
import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import tensorflow as tf

_MOST_AT_ONCE = 16  # files that are asked about
_COMPRESSED = r"\.gz(-\d+-of-\d+)?$"


class Format(abc.ABC):
    """How the examples of files of one kind are read.

    Attributes:
        num_examples: of all files, if that is known before they are read.
    """

    num_examples: int | None = None

    @abc.abstractmethod
    def examples(self, name: tf.Tensor) -> tf.data.Dataset:
        """Returns the examples of the file of this name, a string scalar, in the order of the file."""


class Records(Format):
    """TFRecord files: each record as it is, a string scalar, mostly a serialized `tf.train.Example`."""

    def examples(self, name: tf.Tensor) -> tf.data.Dataset:
        return tf.data.TFRecordDataset(name, compression_of(name))


class Lines(Format):
    """Text: each line, a string scalar without its end."""

    def examples(self, name: tf.Tensor) -> tf.data.Dataset:
        return tf.data.TextLineDataset(name, compression_of(name))


class Kind(NamedTuple):
    """Files that are read in one way.

    Attributes:
        name: for messages.
        suffixes: the ends of their names.
        compresses: whether ".gz" may follow.
        format: (names of all files) -> how they are read.
    """

    name: str
    suffixes: tuple[str, ...]
    compresses: bool
    format: Callable[[Sequence[str]], Format]

    def fits(self, name: str) -> bool:
        """Returns whether a file is of this kind; "-00000-of-00005" and the like may follow what tells the kind."""
        suffix = "|".join(map(re.escape, self.suffixes))
        compressed = r"(\.gz)?" if self.compresses else ""
        return bool(re.search(rf"({suffix}){compressed}(-\d+-of-\d+)?{compressed}$", name))


def compression_of(name: tf.Tensor) -> tf.Tensor:
    """Returns the `compression_type` of a file of this name, both string scalars."""
    return tf.where(tf.strings.regex_full_match(name, ".*" + _COMPRESSED), "GZIP", "")


def each(function: Callable[[str], Any], names: Iterable[str]) -> list[Any]:
    """Returns `function` of every name; asks for several at once, as remote file systems are slow to answer."""
    with ThreadPoolExecutor(_MOST_AT_ONCE) as pool:
        return list(pool.map(function, names))


def _csv(names: Sequence[str]) -> Format:
    from tfdp.data.csv_format import Csv

    return Csv(names)


def _parquet(names: Sequence[str]) -> Format:
    try:
        from tfdp.data.parquet_format import Parquet
    except ImportError as error:
        raise ImportError(
            "Parquet files are read with pyarrow, which is not installed. Install it with: pip install pyarrow"
        ) from error

    return Parquet(names)


KINDS = (
    Kind("TFRecord", (".tfrecord", ".tfrecords", ".tfrec"), True, lambda names: Records()),
    Kind("CSV", (".csv",), True, _csv),
    Kind("Parquet", (".parquet", ".pq"), False, _parquet),
    Kind("text", (".txt", ".jsonl"), True, lambda names: Lines()),
)


def kind_of(name: str) -> Kind | None:
    """Returns the kind of files that a name tells, or None."""
    return next((kind for kind in KINDS if kind.fits(name)), None)
