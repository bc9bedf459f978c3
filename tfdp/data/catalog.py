"""A data set of TensorFlow Datasets as a source of examples, its shards as parts."""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfdp.data.sources import Source

_MOST_AT_ONCE = 16  # shards that are read in turn


class Range(NamedTuple):
    """Examples of a split that follow each other.

    Attributes:
        split: of which they are.
        begin: position of the first.
        end: position after the last.
    """

    split: str
    begin: int
    end: int


class Ranges(Source):
    """Examples of a data set of TensorFlow Datasets, range after range.

    Args:
        builder: of the data set, which is there.
        ranges: which examples, none of them empty.
        name: for messages.
    """

    splits = True

    def __init__(self, builder: Any, ranges: Sequence[Range], name: str) -> None:
        self.name = name
        self.num_examples: int = sum(part.end - part.begin for part in ranges)
        self._builder, self._ranges = builder, ranges

    def examples(self, parts: Sequence[int] | None = None) -> tf.data.Dataset:
        del parts
        return _read(self._builder, self._ranges)

    def split(self, num_pieces: int, piece: int) -> "Ranges":
        # Not `tfds.even_splits`, which splits both of "train+test", and so gives some pieces two examples more.
        begin, end = ((piece + offset) * self.num_examples // num_pieces for offset in (0, 1))
        return Ranges(self._builder, cut(self._ranges, begin, end), f"piece {piece} of {num_pieces} of {self.name}")


class Catalog(Ranges):
    """A data set of TensorFlow Datasets, which is downloaded and prepared unless it is there.

    Its examples are pairs (input, label) where the data set says which features these are, or else a dict of all.

    Args:
        name_or_builder: such as "mnist" or "glue/mrpc:1.0.0", or what `tfds.builder` returns.
        split: such as "train", "train[:10%]" or "train+test", or a `tfds.core.ReadInstruction`. Only a whole split has
            parts.

    Raises:
        ImportError: tensorflow-datasets is missing.
        ValueError: there is no such data set or split, or no split is given.
    """

    def __init__(self, name_or_builder: Any, split: Any) -> None:
        builder = _builder(name_or_builder)
        if split is None:
            raise _no_split(builder, split)  # before anything is downloaded
        _prepare(builder)
        super().__init__(builder, _ranges(builder, split), f"split {split} of {builder.info.full_name}")
        if isinstance(split, str) and split in builder.info.splits:
            info = builder.info.splits[split]
            self.part_sizes, self.part_names = info.shard_lengths, info.filenames

    def examples(self, parts: Sequence[int] | None = None) -> tf.data.Dataset:
        """Returns all examples, one shard after the other, or those of some shards in turn."""
        if parts is None:
            return super().examples()
        ends = list(itertools.accumulate(self.part_sizes, initial=0))
        ranges = [piece for part in parts for piece in cut(self._ranges, ends[part], ends[part + 1])]
        return _read(self._builder, ranges, at_once=min(max(len(ranges), 1), _MOST_AT_ONCE))


def cut(ranges: Sequence[Range], begin: int, end: int) -> list[Range]:
    """Returns the examples from position `begin` to before `end` of those of all ranges."""
    inner, first = [], 0
    for split, start, stop in ranges:
        part = Range(split, max(start, start + begin - first), min(stop, start + end - first))
        if part.begin < part.end:
            inner.append(part)
        first += stop - start
    return inner


def _builder(name_or_builder: Any) -> Any:
    if not isinstance(name_or_builder, str):
        return name_or_builder
    try:
        import tensorflow_datasets as tfds
    except ImportError as error:
        raise ImportError(
            f"{name_or_builder!r} is no file, and data sets by name are read with tensorflow-datasets, which is not "
            "installed. Install it with: pip install tensorflow-datasets"
        ) from error
    try:
        return tfds.builder(name_or_builder)
    except tfds.core.DatasetNotFoundError as error:
        raise ValueError(
            "`dataset` must name files that exist, or a data set of TensorFlow Datasets. Received: "
            f"{name_or_builder!r}, which is neither."
        ) from error


def _prepare(builder: Any) -> None:
    """Downloads and prepares a data set unless it is there."""
    if builder.is_prepared():
        return
    try:
        builder.download_and_prepare()
    except OSError:
        if not builder.is_prepared():
            raise
        builder.info.read_from_directory(builder.data_dir)  # another process was faster, and its data are the same


def _ranges(builder: Any, split: Any) -> list[Range]:
    """Returns the ranges of what a split stands for, without empty ones."""
    import tensorflow_datasets as tfds

    splits = builder.info.splits
    try:
        instructions = tfds.core.ReadInstruction.from_spec(split).to_absolute(splits)
    except (AssertionError, TypeError, ValueError) as error:
        raise _no_split(builder, split) from error
    ranges = [
        Range(each.splitname, each.from_ or 0, splits[each.splitname].num_examples if each.to is None else each.to)
        for each in instructions
    ]
    return [part for part in ranges if part.begin < part.end]


def _no_split(builder: Any, split: Any) -> ValueError:
    known = ", ".join(map(repr, sorted(builder.info.splits)))
    return ValueError(
        f"`split` must be a split of {builder.info.full_name}{f' ({known})' if known else ''} or a part of one, such "
        f"as 'train[:10%]'. Received: split={split!r}."
    )


def _read(builder: Any, ranges: Sequence[Range], *, at_once: int = 1) -> tf.data.Dataset:
    if not ranges:  # TensorFlow Datasets reads nothing that is empty
        some = [Range(name, 0, 1) for name, info in builder.info.splits.items() if info.num_examples]
        return _read(builder, some[:1]).take(0)
    import tensorflow_datasets as tfds

    instructions = [tfds.core.ReadInstruction(split, begin, end, unit="abs") for split, begin, end in ranges]
    return builder.as_dataset(
        split=sum(instructions[1:], instructions[0]),
        as_supervised=builder.info.supervised_keys is not None,
        shuffle_files=False,
        read_config=tfds.ReadConfig(
            interleave_cycle_length=at_once,
            interleave_block_length=1,
            enable_ordering_guard=False,  # parts are read in turn, whatever order the data set had
            try_autocache=False,
        ),
    )
