"""Where examples come from: what can be read by position, as one stream, or in parts."""

import abc
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdp import tf_seam
from tfdp.data import order


class Source(abc.ABC):
    """Examples in a fixed order, the same on every worker.

    Attributes:
        name: for messages.
        num_examples: how many there are, if that is known.
        part_sizes: of the parts that can be read one by one, in bytes or examples; none where there are no parts.
        part_names: of them.
        seeds: of what it was shuffled with before: the same on all workers where their order is.
        splits: whether `split` can give a piece without reading the rest.
        repeats: whether the order of an epoch is the same each time it is read.
        changes: whether an epoch may have other examples than the one before.
    """

    name = "the data"
    num_examples: int | None = None
    part_sizes: Sequence[int] = ()
    part_names: Sequence[str] = ()
    seeds: Sequence[Sequence[int]] = ()
    splits = False
    repeats = True
    changes = False

    @abc.abstractmethod
    def examples(self, parts: Sequence[int] | None = None) -> tf.data.Dataset:
        """Returns the examples one by one, in an order that depends on nothing else.

        Args:
            parts: the positions of those to read, in the order in which to begin them; None for all.
        """

    def in_epoch(self, seed: int, epoch: int) -> "Source":
        """Returns the source as it is in an epoch, where each has an order of its own; else itself."""
        del seed, epoch
        return self

    def end_epoch(self, epoch: int) -> None:
        """Is told that all of an epoch has been read."""
        del epoch

    def split(self, num_pieces: int, piece: int) -> "Source":
        """Returns one of `num_pieces` pieces that together are everything, and differ by one example at most."""
        raise NotImplementedError


class Indexed(Source):
    """Examples that can be taken by their positions."""

    num_examples: int

    @abc.abstractmethod
    def take(self, positions: tf.Tensor) -> Any:
        """Returns the examples at int64 `positions`: of one where it is a scalar, a batch where it is a vector."""

    def examples(self, parts: Sequence[int] | None = None) -> tf.data.Dataset:
        del parts
        return tf.data.Dataset.range(self.num_examples).map(self.take, num_parallel_calls=tf.data.AUTOTUNE)


class Arrays(Indexed):
    """Tensors whose first axes are the examples."""

    def __init__(self, arrays: Any, name: str) -> None:
        self.name = name
        self._tensors = tf.nest.map_structure(_as_tensor, arrays)
        leaves = tf.nest.flatten(self._tensors)
        if not leaves:
            raise ValueError(f"`dataset` must hold at least one array. Received: {name} without any.")
        counts = {_num_rows(leaf) for leaf in leaves}
        if len(counts) > 1:
            raise ValueError(
                "All arrays of `dataset` must have as many rows, one for each example. Received: "
                f"{', '.join(map(str, sorted(counts)))} rows."
            )
        (self.num_examples,) = counts

    def take(self, positions: tf.Tensor) -> Any:
        return tf.nest.map_structure(lambda tensor: tf.gather(tensor, positions), self._tensors)


class Stream(Source):
    """Examples of a tf.data.Dataset; what shuffles it within gets seeds that follow from the epoch."""

    def __init__(self, dataset: tf.data.Dataset, name: str) -> None:
        cardinality = int(dataset.cardinality())
        if cardinality == tf.data.INFINITE_CARDINALITY:
            raise ValueError(
                "`dataset` must end: an epoch is every example once. Received: a data set that repeats for ever. Leave "
                "`repeat()` out; `fit` begins each epoch anew."
            )
        self.name = name
        self.num_examples = None if cardinality == tf.data.UNKNOWN_CARDINALITY else cardinality
        self.seeds = tf_seam.shuffle_seeds(dataset)
        self.repeats = not tf_seam.is_unsettled(dataset)
        self._dataset = dataset
        try:
            self._reseeded = tf_seam.Reseeded(dataset) if tf_seam.has_orders(dataset) else None
        except ValueError as error:
            raise ValueError(
                "`dataset` must have an order that follows from a seed and the epoch. Received: a tf.data.Dataset that "
                f"is shuffled in a place from which it cannot be taken, before a step {error}. Leave `shuffle` out and "
                "give `shuffle_buffer` to tfdp.data.shard, or give `shuffle` a `seed` and "
                "`reshuffle_each_iteration=False`, which keeps one order."
            ) from error

    def examples(self, parts: Sequence[int] | None = None) -> tf.data.Dataset:
        del parts
        return self._dataset

    def in_epoch(self, seed: int, epoch: int) -> Source:
        if self._reseeded is None:
            return self
        this, first = ([self._seed(seed, one, index) for index in range(len(self.seeds))] for one in (epoch, 0))
        return _Ordered(self, self._reseeded.with_seeds(this, first))

    def _seed(self, seed: int, epoch: int, index: int) -> int:
        """Returns the seed of one of the places where the data set is shuffled: of its own seeds where it has some."""
        own = self.seeds[index] if any(self.seeds[index]) else [seed]
        return order.epoch_seed(abs(own[0]), epoch, *map(abs, own[1:]), index)


class _Ordered(Source):
    """Examples of a source in the order of an epoch."""

    def __init__(self, source: Source, dataset: tf.data.Dataset) -> None:
        self.name, self.num_examples, self._dataset = source.name, source.num_examples, dataset

    def examples(self, parts: Sequence[int] | None = None) -> tf.data.Dataset:
        del parts
        return self._dataset


def _as_tensor(array: Any) -> Any:
    if isinstance(array, tf.Tensor | tf.RaggedTensor):
        return array
    if isinstance(array, tf.SparseTensor):
        raise TypeError(
            "`dataset` must hold no sparse arrays, whose rows cannot be picked. Received: a tf.SparseTensor. Use "
            "tf.data.Dataset.from_tensor_slices(...), or tf.sparse.to_dense."
        )
    return tf.convert_to_tensor(array)


def _num_rows(tensor: Any) -> int:
    if tensor.shape.rank == 0:
        raise ValueError("Arrays of `dataset` must have an axis of examples. Received: a scalar.")
    return int(tensor.nrows()) if isinstance(tensor, tf.RaggedTensor) else int(tensor.shape[0])
