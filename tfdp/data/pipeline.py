"""The tf.data pipeline of one worker in one epoch: its examples in batches, one for each of its replicas in turn."""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfdp import tf_seam
from tfdp.data import order
from tfdp.data.layout import Layout, assigned
from tfdp.data.order import Leg
from tfdp.data.sources import Indexed, Source


class Options(NamedTuple):
    """How a data set is shared.

    Attributes:
        global_batch_size: examples of a step, of all replicas.
        shuffle_buffer: how many examples a shuffled one is drawn from; 0 keeps their order.
        seed: of the orders of all epochs.
        by: "files" where each worker reads its own parts.
        own_streams: whether each worker has a stream of its own (of its parts, or of a piece of everything), or all
            have one stream, of each batch of which they take their part.
        uneven: what becomes of a last batch that is not full: "exact", "drop" or "pad".
        transform: what is done to each example of this worker, one after the other.
        batch: (examples, size) -> batches; None for tf.data.Dataset.batch.
        cache: whether examples are kept in memory after they were read once.
    """

    global_batch_size: int
    shuffle_buffer: int
    seed: int
    by: str
    own_streams: bool
    uneven: str
    transform: tuple[Callable[..., Any], ...] = ()
    batch: Callable[[tf.data.Dataset, int], tf.data.Dataset] | None = None
    cache: bool = False


class Reader:
    """Reads one worker's part of a data set; keeps what it has in its cache from epoch to epoch."""

    def __init__(self, source: Source, layout: Layout, options: Options) -> None:
        self._source, self._layout, self._options = source, layout, options
        self._cached: dict[Any, tf.data.Dataset] = {}
        self._counts: dict[Any, int] = {}
        self._transforms = [tf.function(transform) for transform in options.transform]  # traced in the first epoch only

    def batches(self, epoch: int, legs: Sequence[Leg], num_steps: int | None = None) -> tf.data.Dataset:
        """Returns what is left of an epoch: a batch for each of this worker's replicas in turn.

        Args:
            epoch: which one.
            legs: what was made of it already, by which workers.
            num_steps: how many to make, where each worker has a stream of its own; None for all.
        """
        dataset = self._own_batches(epoch, [leg for leg in legs if leg.num_steps], num_steps)
        if num_steps is not None:
            dataset = dataset.take(num_steps * self._layout.num_local_replicas)
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
        options.deterministic = True
        return dataset.with_options(options).prefetch(tf.data.AUTOTUNE)

    def num_own_steps(self, legs: Sequence[Leg]) -> int:
        """Returns how many steps this worker has left in an epoch, where each reads its own parts; counts examples."""
        examples = self._own_stream(
            0, [leg for leg in legs if leg.num_steps], self._layout.num_workers, self._layout.worker
        )
        return order.num_steps(self._count(("own", tuple(legs)), examples), self._own_size, self._options.uneven)

    def has_left(self, epoch: int, legs: Sequence[Leg]) -> bool:
        """Returns whether this worker can read anything after `legs`, of all where they have one stream."""
        if self._options.own_streams:
            examples = self._own_stream(epoch, legs, self._layout.num_workers, self._layout.worker)
        else:
            examples = self._source.examples().skip(sum(leg.num_examples for leg in legs))
        return next(iter(examples.take(1)), None) is not None

    @property
    def _own_size(self) -> int:
        """The examples of this worker in each full global batch, where it has a stream of its own: one at least."""
        return max(order.own_size(self._layout, self._options.global_batch_size), 1)

    def _own_batches(self, epoch: int, legs: Sequence[Leg], num_steps: int | None) -> tf.data.Dataset:
        source, layout, options = self._source, self._layout, self._options
        size = options.global_batch_size
        if options.own_streams:
            examples = self._own_stream(epoch, legs, layout.num_workers, layout.worker)
            examples = self._evened(examples, ("own", tuple(legs)), self._own_size, num_steps)
            return self._in_batches(self._with_weights(examples))
        skipped = sum(leg.num_examples for leg in legs)
        if isinstance(source, Indexed):
            return self._picked(source, epoch, skipped)
        # What is cached was read in one order.
        ordered = source.in_epoch(options.seed, 0 if options.cache else epoch)
        examples = self._cache("all", ordered.examples)
        if options.shuffle_buffer:
            examples = _shuffled(examples, options.shuffle_buffer, order.epoch_seed(options.seed, epoch))
        examples = self._evened(
            examples.skip(skipped) if skipped else examples, ("all", skipped, epoch if source.changes else 0), size
        )
        own = _own_part(examples, layout, size)
        return self._in_batches(self._with_weights(self._transformed(own, has_weights=options.uneven == "pad")))

    def _picked(self, source: Indexed, epoch: int, skipped: int) -> tf.data.Dataset:
        """Returns the batches of examples that are taken by their positions."""
        layout, options = self._layout, self._options
        size, num_examples = options.global_batch_size, source.num_examples
        rows = np.arange(num_examples)
        if options.shuffle_buffer:
            rows = order.permutation(num_examples, options.seed, epoch)
        rows = rows[skipped:]
        weights = np.ones(len(rows), np.float32)
        if options.uneven == "drop":
            rows = rows[: len(rows) // size * size]
        elif options.uneven == "pad" and len(rows):
            missing = -len(rows) % size
            rows, weights = np.pad(rows, (0, missing), mode="edge"), np.pad(weights, (0, missing))
        own = order.own_rows(rows, layout, size)
        if options.uneven == "pad":
            positions = tf.data.Dataset.from_tensor_slices((own, order.own_rows(weights, layout, size)))
        else:
            positions = tf.data.Dataset.from_tensor_slices((own,))

        def take(position: tf.Tensor, weight: tf.Tensor | None = None) -> Any:
            element = source.take(position)
            return element if weight is None else (element, weight)

        if not options.transform and options.batch is None:
            batches = self._in_batches(positions).map(take, num_parallel_calls=tf.data.AUTOTUNE)
            return self._with_weights(batches)
        examples = positions.map(take, num_parallel_calls=tf.data.AUTOTUNE)
        return self._in_batches(self._with_weights(self._transformed(examples, has_weights=options.uneven == "pad")))

    def _own_stream(self, epoch: int, legs: Sequence[Leg], num_workers: int, worker: int) -> tf.data.Dataset:
        """Returns what a worker still has to read where each reads its own parts.

        After a change of the workers each of the new ones reads on where some of those before had stopped.
        """
        if not legs:
            return self._whole_stream(epoch, num_workers, worker)
        *before, last = legs
        if last.num_workers == num_workers:
            done = last.num_steps * max(order.own_size(Layout(num_workers, worker), last.global_batch_size), 1)
            return self._own_stream(epoch, before, num_workers, worker).skip(done)
        former = [
            self._own_stream(epoch, legs, last.num_workers, index)
            for index in range(worker, last.num_workers, num_workers)
        ]
        stream = former[0] if former else self._own_stream(epoch, legs, last.num_workers, 0).take(0)
        for other in former[1:]:
            stream = stream.concatenate(other)
        return stream

    def _whole_stream(self, epoch: int, num_workers: int, worker: int) -> tf.data.Dataset:
        source, options = self._source, self._options
        seed = order.epoch_seed(options.seed, epoch)
        if options.by == "files":
            parts = assigned(source.part_sizes, num_workers)[worker]
            if options.shuffle_buffer and not options.cache:  # what is cached was read in one order
                parts = [parts[i] for i in np.random.default_rng(seed).permutation(len(parts))]
            piece, chosen = source, parts
        else:
            piece, chosen = source.split(num_workers, worker), None
        examples = self._cache((num_workers, worker), lambda: self._transformed(piece.examples(chosen)))
        return _shuffled(examples, options.shuffle_buffer, seed) if options.shuffle_buffer else examples

    def _evened(self, examples: tf.data.Dataset, key: Any, size: int, num_steps: int | None = None) -> tf.data.Dataset:
        """Drops what does not fill a last batch of `size`, or fills it up: then gives pairs (example, weight).

        With `num_steps` it fills up as many batches.
        """
        uneven = self._options.uneven
        if uneven == "exact":
            return examples
        count = self._count(key, examples)
        if uneven == "drop":
            return examples.take(count // size * size)
        missing = -count % size if num_steps is None else max(num_steps * size - count, 0)
        first = examples.take(1) if count or not missing else self._transformed(self._source.examples()).take(1)
        fillers = first.repeat(missing).map(lambda *element: (_joined(element), tf.zeros([])))
        return examples.map(lambda *element: (_joined(element), tf.ones([]))).concatenate(fillers)

    def _count(self, key: Any, examples: tf.data.Dataset) -> int:
        """Returns how many examples there are, where nobody knows by reading them all, once."""
        count = int(examples.cardinality())
        if count < 0 and key not in self._counts:
            self._counts[key] = int(examples.reduce(np.int64(0), lambda total, *_: total + 1))
        return count if count >= 0 else self._counts[key]

    def _transformed(self, examples: tf.data.Dataset, *, has_weights: bool = False) -> tf.data.Dataset:
        """Applies what was to be done to each example, of pairs (example, weight) to their first."""
        for transform in self._transforms:
            if has_weights:
                transform = functools.partial(_beside_weight, transform)
            examples = examples.map(transform, num_parallel_calls=tf.data.AUTOTUNE)
        return examples

    def _with_weights(self, examples: tf.data.Dataset) -> tf.data.Dataset:
        """Returns (x, y, sample weights) of pairs (example or batch, weight), where there are such."""
        return examples.map(weighted) if self._options.uneven == "pad" else examples

    def _cache(self, key: Any, read: Callable[[], tf.data.Dataset]) -> tf.data.Dataset:
        if not self._options.cache:
            return read()
        if key not in self._cached:
            self._cached[key] = read().cache()
        return self._cached[key]

    def _in_batches(self, examples: tf.data.Dataset) -> tf.data.Dataset:
        """Returns a batch for each of this worker's replicas in turn, of its part of each global batch."""
        sizes = self._replica_sizes()
        batch, num_local = self._options.batch or self._batched, self._layout.num_local_replicas
        if len(set(sizes)) == 1:
            return batch(examples, max(sizes[0], 1))
        edges = tf.constant(list(itertools.accumulate(sizes, initial=0)), tf.int64)

        def parts(*joined: Any) -> tf.data.Dataset:
            def part(replica: tf.Tensor) -> Any:
                cut = lambda leaf: _cut(leaf, edges[replica], edges[replica + 1])  # noqa: E731
                return tf.nest.map_structure(cut, _joined(joined))

            return tf.data.Dataset.range(num_local).map(part)

        return batch(examples, sum(sizes)).flat_map(parts)

    def _replica_sizes(self) -> list[int]:
        """Returns how many examples of each full global batch each replica of this worker takes."""
        layout, size = self._layout, self._options.global_batch_size
        if self._options.own_streams:
            num_local, own = layout.num_local_replicas, self._own_size
            return [(replica + 1) * own // num_local - replica * own // num_local for replica in range(num_local)]
        return [end - begin for begin, end in order.pieces(layout, size, size)]

    def _batched(self, examples: tf.data.Dataset, size: int) -> tf.data.Dataset:
        # All batches are full where the rest was dropped or filled up: this gives them static shapes.
        is_full = self._options.uneven != "exact"
        return examples.batch(size, drop_remainder=is_full, num_parallel_calls=tf.data.AUTOTUNE)


@tf.autograph.experimental.do_not_convert
def weighted(element: Any, weight: tf.Tensor) -> Any:
    """Returns (x, y, sample weights) of an example or a batch; `weight` multiplies the weights that it has.

    Raises:
        ValueError: it is no pair (x, y) or triple (x, y, sample weights).
    """
    if not isinstance(element, tuple) or len(element) not in (2, 3):
        raise ValueError(
            "`uneven='pad'` gives examples a weight, so they must be pairs (x, y) or triples (x, y, sample_weight). "
            f"Received: {element!r}. Use uneven='exact' or 'drop'."
        )
    if len(element) == 2:
        return (*element, weight)

    def scaled(own: Any) -> tf.Tensor:
        own = tf.convert_to_tensor(own)
        shape = [*weight.shape.as_list(), *[1] * (own.shape.rank - weight.shape.rank)]
        return own * tf.reshape(tf.cast(weight, own.dtype), shape)

    return (*element[:2], tf.nest.map_structure(scaled, element[2]))


def _beside_weight(transform: Callable[..., Any], element: Any, weight: tf.Tensor) -> Any:
    # As tf.data unpacks: no namedtuples.
    return (transform(*element) if type(element) is tuple else transform(element)), weight


def _joined(element: tuple) -> Any:
    return element[0] if len(element) == 1 else element


def _shuffled(examples: tf.data.Dataset, buffer: int, seed: int) -> tf.data.Dataset:
    with tf_seam.without_global_seed():  # which workers may have set each on their own
        return examples.shuffle(buffer, seed=seed, reshuffle_each_iteration=False)


def _own_part(examples: tf.data.Dataset, layout: Layout, global_batch_size: int) -> tf.data.Dataset:
    """Returns this worker's examples of those of all; see `order.pieces`."""
    if layout.num_workers == 1:
        return examples
    blocks = order.blocks(layout, global_batch_size)
    sizes = [end - begin for begin, end in blocks]
    if len(sizes) == 1 or all(size == sizes[0] and size % layout.num_workers == 0 for size in sizes):
        size, blocks = sizes[0], [(0, sizes[0])]  # as if each block were a batch
    else:
        size = global_batch_size

    def own(*windows: Any) -> tf.data.Dataset:
        num_rows = tf.nest.flatten(windows)[0].cardinality()
        window = tf.data.Dataset.zip(_joined(windows))
        parts = []
        for block in blocks:
            begin, end = (tf.minimum(tf.constant(edge, tf.int64), num_rows) for edge in block)
            begin, end = order.piece(layout, begin, end, tf.minimum)
            parts.append(window.skip(begin).take(end - begin))
        return functools.reduce(lambda part, other: part.concatenate(other), parts)

    return examples.window(size).flat_map(own)


def _cut(leaf: Any, begin: tf.Tensor, end: tf.Tensor) -> Any:
    if not isinstance(leaf, tf.SparseTensor):
        return leaf[begin:end]
    begin, end = (tf.minimum(edge, leaf.dense_shape[0]) for edge in (begin, end))
    rest = leaf.dense_shape[1:]
    return tf.sparse.slice(leaf, tf.concat([[begin], tf.zeros_like(rest)], 0), tf.concat([[end - begin], rest], 0))
