"""Files as a source of examples, each of them a part."""

import collections
import os
import re
from collections.abc import Sequence

import tensorflow as tf

from tfdp.data.formats import KINDS, Kind, each, kind_of
from tfdp.data.sources import Source

_MOST_AT_ONCE = 16  # files that are read in turn
_PATTERN = re.compile(r"[*?\[]")
# "mnist", "glue/mrpc:1.0.0", "kaggle:name/config:2.*.*", "name/config/argument=value"
_CATALOG_NAME = re.compile(r"([\w-]+:)?[a-zA-Z]\w*(/[\w+.-]+)?(:(\d+|\*)(\.(\d+|\*)){2})?(/(\w+=[^,]+,?)+)?")


class Files(Source):
    """Examples in TFRecord, CSV, Parquet or text files.

    TFRecord files give their records, and text files their lines, as string scalars, for `map` to parse. CSV files,
    which must begin with a row of names, and Parquet files give a dict from the names of columns to values.

    Args:
        names: of files of one kind, or patterns of them; what a pattern matches is sorted.

    Raises:
        ImportError: pyarrow is missing, which reads Parquet files.
        ValueError: there is no such file, or one is given twice, or they are not of one kind that is known.
    """

    def __init__(self, names: Sequence[str | os.PathLike]) -> None:
        files = _expanded([os.fspath(name) for name in names])
        kind = _kind_of_all(files)
        self.name = f"{len(files)} {kind.name} file{'s' * (len(files) > 1)}"
        self.part_names = files
        self.part_sizes = each(lambda name: tf.io.gfile.stat(name).length, files)
        self._format = kind.format(files)
        self.num_examples = self._format.num_examples

    def examples(self, parts: Sequence[int] | None = None) -> tf.data.Dataset:
        """Returns the examples of all files one after the other, or those of some of them in turn."""
        chosen = self.part_names if parts is None else [self.part_names[part] for part in parts]
        names = tf.data.Dataset.from_tensor_slices(tf.constant(chosen, tf.string))
        if parts is None:
            return names.flat_map(self._format.examples)
        return names.interleave(
            self._format.examples,
            cycle_length=min(max(len(chosen), 1), _MOST_AT_ONCE),
            num_parallel_calls=tf.data.AUTOTUNE,
            deterministic=True,
        )


def looks_like_files(name: str) -> bool:
    """Returns whether a name is of files, and not of a data set of TensorFlow Datasets such as "mnist/fewer".

    Example:
        >>> from tfdp.data.files import looks_like_files
        >>> looks_like_files("data/*.tfrecord"), looks_like_files("mnist"), looks_like_files("glue/mrpc:1.0.0")
        (True, False, False)
    """
    if kind_of(name) or not _CATALOG_NAME.fullmatch(name):
        return True
    # A folder "mnist" does not hide the data set of that name: no folder can be read.
    return tf.io.gfile.exists(name) and not tf.io.gfile.isdir(name)


def _expanded(names: Sequence[str]) -> list[str]:
    if not names:
        raise ValueError("`dataset` must name at least one file. Received: an empty list.")
    files = [file for name in names for file in _matching(name)]
    counts = collections.Counter(name if "://" in name else os.path.abspath(name) for name in files)
    twice = sorted(name for name, count in counts.items() if count > 1)
    if twice:
        raise ValueError(f"`dataset` must name each file once. Received: {twice[0]!r} more than once.")
    return files


def _matching(name: str) -> list[str]:
    """Returns the files of a name or of a pattern."""
    if tf.io.gfile.exists(name):
        if tf.io.gfile.isdir(name):
            raise ValueError(
                f"`dataset` must name files. Received: the folder {name!r}. Give a pattern, such as "
                f"{os.path.join(name, '*.tfrecord')!r}."
            )
        return [name]
    files = sorted(tf.io.gfile.glob(name)) if _PATTERN.search(name) else []
    if not files:
        raise ValueError(f"`dataset` must name files that exist. Received: {name!r}, which matches none.")
    return files


def _kind_of_all(files: Sequence[str]) -> Kind:
    first: dict[Kind, str] = {}
    for name in files:
        kind = kind_of(name)
        if kind is None:
            known = ", ".join(f"{kind.name} ({', '.join(kind.suffixes)})" for kind in KINDS)
            raise ValueError(
                f"`dataset` must name files of a kind that the ends of their names tell: {known}. Received: {name!r}."
            )
        first.setdefault(kind, name)
    if len(first) > 1:
        received = " and ".join(f"{kind.name} ({name!r})" for kind, name in first.items())
        raise ValueError(f"`dataset` must name files of one kind. Received: {received}.")
    (kind,) = first
    return kind
