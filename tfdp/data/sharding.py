"""The door to sharded data: what a user has becomes what `fit` takes on every worker."""

import json
import logging
import operator
import random
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfdp import keras_seam
from tfdp.data import order
from tfdp.data.choosing import choose, has_pieces
from tfdp.data.layout import Layout, layout_of
from tfdp.data.order import Leg
from tfdp.data.pipeline import Options, Reader
from tfdp.data.python_sources import PyBatches
from tfdp.data.reading import as_source
from tfdp.data.sources import Source

_LOG = logging.getLogger("tfdp")


def shard(
    dataset: Any,
    *,
    strategy: tf.distribute.Strategy | None = None,
    global_batch_size: int | None = None,
    per_replica_batch_size: int | None = None,
    shuffle_buffer: int | None = None,
    seed: int | None = None,
    by: str = "auto",
    uneven: str | None = None,
    split: str | None = None,
    batched: bool | None = None,
    map: Callable[..., Any] | None = None,
    cache: bool = False,
) -> "ShardedDataset":
    """Returns data of which every worker gets its right part: `fit`, `evaluate` and `predict` take it as it is.

    Every example comes exactly once an epoch over all workers, in another order each epoch, and the batches of a step
    are together those that one device would have. Every worker must call this with the same arguments.

    Example:
        >>> import numpy as np, tfdp
        >>> x = np.arange(10, dtype="float32")[:, np.newaxis]
        >>> data = tfdp.data.shard((x, x), global_batch_size=4, shuffle_buffer=10, seed=0)
        >>> [len(batch[0]) for batch in data]
        [4, 4, 2]

    Args:
        dataset: a tf.data.Dataset (of examples or of batches, which are taken apart), numpy arrays, tensors, pandas
            objects or a nest of them such as (x, y), a `keras.utils.PyDataset`, a function that returns an iterator of
            examples, names of TFRecord, CSV or Parquet files (a path, a pattern such as "data/*.tfrecord", or a list),
            or the name or builder of a data set of TensorFlow Datasets.
        strategy: whose replicas share the data; None for the one whose scope this is called in, or else one device.
        global_batch_size: examples of a step, of all replicas together.
        per_replica_batch_size: or of one replica. One of both must be given, but for a tf.data.Dataset of batches:
            these are the global ones then.
        shuffle_buffer: how many examples a shuffled one is drawn from. Examples that can be picked (arrays) are
            shuffled as a whole whatever the number. None or 0 keeps their order, or takes over the buffer of a
            tf.data.Dataset that is shuffled.
        seed: of all orders; None draws one, the same on all workers.
        by: "files" lets each worker read its own files, "examples" lets each take its part of every batch, "auto"
            chooses; `reason` of what is returned says why.
        uneven: what becomes of a last batch that is not full: "exact" trains on it (every example weighs the same),
            "drop" leaves it out, "pad" fills it up with examples of weight zero. None means "exact", or "drop" for a
            tf.data.Dataset that was batched with `drop_remainder`.
        split: of a data set of TensorFlow Datasets: "train", "test[:10%]" ..
        batched: whether a tf.data.Dataset gives batches; None to tell it by its steps and shapes, and to raise where
            these do not tell.
        map: is called for each example of this worker, as `tf.data.Dataset.map` does, after the choice of its part.
        cache: whether examples are kept in memory once they were read (and mapped, where each worker has its own).

    Returns:
        An iterable of batches, one for each replica of this process, an epoch each time, with `position` for
        tf.train.Checkpoint.

    Raises:
        ValueError: an argument is out of range, or the data cannot be shared in this way.
        TypeError: `dataset` is of a kind that is not known.
    """
    if strategy is not None and not isinstance(strategy, tf.distribute.Strategy):
        raise TypeError(
            "`strategy` must be a strategy, such as tfdp.MultiWorkerMirroredStrategy(), or None for the one in scope. "
            f"Received: strategy={strategy!r}."
        )
    strategy = strategy or (tf.distribute.get_strategy() if tf.distribute.has_strategy() else None)
    layout = Layout() if strategy is None else layout_of(strategy)
    source, options, reason = shared(
        dataset,
        layout,
        global_batch_size=global_batch_size,
        per_replica_batch_size=per_replica_batch_size,
        shuffle_buffer=shuffle_buffer,
        seed=seed,
        by=by,
        uneven=uneven,
        split=split,
        batched=batched,
        map=map,
        cache=cache,
    )
    _LOG.info("tfdp.data: %s by %s: %s.", source.name, options.by, reason)
    return ShardedDataset(source, options, layout, strategy, reason)


def shared(
    dataset: Any,
    layout: Layout,
    *,
    global_batch_size: int | None = None,
    per_replica_batch_size: int | None = None,
    shuffle_buffer: int | None = None,
    seed: int | None = None,
    by: str = "auto",
    uneven: str | None = None,
    split: str | None = None,
    batched: bool | None = None,
    map: Callable[..., Any] | None = None,
    cache: bool = False,
) -> tuple[Source, Options, str]:
    """Returns what the workers of a layout share, how, and why by files or by examples; for the arguments see `shard`.

    It is the same for every worker of the layout but for a seed that is drawn.
    """
    shuffle_buffer = None if shuffle_buffer is None else checked_count("shuffle_buffer", shuffle_buffer, least=0)
    seed = None if seed is None else checked_count("seed", seed, least=0)
    _check(by, uneven, map, cache, batched)
    source, peel = as_source(dataset, split, num_workers=layout.num_workers, batched=batched)
    if global_batch_size is None and per_replica_batch_size is None:
        global_batch_size = peel.batch_size
    size = checked_batch_size(global_batch_size, per_replica_batch_size, layout.num_replicas)
    uneven = uneven or ("drop" if peel.drops_remainder else "exact")
    buffer = shuffle_buffer if shuffle_buffer is not None else peel.shuffle_buffer
    by, reason = choose(source, layout.num_workers, size, by)
    options = Options(
        global_batch_size=size,
        shuffle_buffer=buffer,
        seed=seed if seed is not None else random.SystemRandom().getrandbits(31),
        by=by,
        own_streams=by == "files" or has_pieces(source, layout.num_workers, size),
        uneven=uneven,
        transform=(*peel.maps, *([map] if map else [])),
        batch=peel.batch,
        cache=cache,
    )
    return source, options, reason


class ShardedDataset(keras_seam.EpochData):
    """What `shard` returns: this worker's part of a data set, an epoch after the other.

    Iterating gives an epoch of batches: per-replica values as `tf.distribute.Strategy.run` takes them, or plain tensors
    on one device.

    Attributes:
        by: "files" or "examples".
        reason: why.
        position: epoch, steps and seed, for `tf.train.Checkpoint(data=sharded.position)`: the same on all workers.
    """

    def __init__(
        self,
        source: Source,
        options: Options,
        layout: Layout,
        strategy: tf.distribute.Strategy | None = None,
        reason: str = "",
    ) -> None:
        keras_seam.install_epochs()
        self.by, self.reason = options.by, reason
        self._source, self._layout, self._strategy = source, layout, strategy
        options = options._replace(seed=self._agreed(source, options))
        self._usual = options, Reader(source, layout, options)
        self._options, self._reader = self._usual  # of this epoch, which may have been begun in another way
        self._epoch = 0
        self._legs: list[Leg] = []  # of this epoch, before the iterator that is read now
        self._consumer: Any = None  # Keras's iterator over epochs, which counts the steps
        self._own_steps = 0  # of an iterator of ours
        self._waiting: Any = None  # an iterator that nothing was taken from, after what was done to its batches
        self.position = Position(self)

    # What users call

    def __iter__(self) -> Iterator[Any]:
        self._begin(None)
        for batch in self._taken():
            self._own_steps += 1
            yield batch
        self._next_epoch()

    def __len__(self) -> int:
        """Returns the steps of what is left of this epoch.

        Raises:
            TypeError: nobody knows.
        """
        steps = self.num_batches
        if steps is None:
            raise TypeError(f"The number of examples of {self._source.name} is not known before they are read.")
        return steps

    @property
    def num_batches(self) -> int | None:
        """The steps that are left of this epoch; None where nobody knows."""
        legs, options = self._current_legs(), self._options
        if options.own_streams and options.uneven != "exact":
            return self._agreed_steps(legs)
        total, num_workers = self._source.num_examples, self._layout.num_workers
        if total is None:
            return None
        if options.own_streams and any(leg.num_workers > 1 for leg in legs):
            if self.by == "files" or any(leg.num_steps for leg in legs):
                return None  # until the last worker has come to the end of its own
            # The largest piece.
            return order.num_steps(-(-total // num_workers), options.global_batch_size // num_workers, options.uneven)
        left = max(total - sum(leg.num_examples for leg in legs), 0)
        return order.num_steps(left, options.global_batch_size, options.uneven)

    @property
    def epoch(self) -> int:
        """Which epoch this is, from 0."""
        return self._epoch

    def local_batches(self, epoch: int | None = None) -> tf.data.Dataset:
        """Returns this worker's batches of an epoch (None: of what is left of this one), a replica's each in turn."""
        if epoch is None:
            return self._dataset()
        self._options, self._reader = self._usual
        steps = self._agreed_steps([]) if self._options.own_streams else None
        return self._reader.batches(epoch, [], steps)

    def __repr__(self) -> str:
        return (
            f"<tfdp.data.ShardedDataset: {self._source.name} by {self.by} for worker {self._layout.worker} of "
            f"{self._layout.num_workers}, batches of {self._options.global_batch_size}>"
        )

    @property
    def worker(self) -> int:
        """Which worker this is."""
        return self._layout.worker

    def told_by_any(self, topic: str, value: Any) -> Any:
        """Returns `value` (of JSON) of the first worker that has one, or None; all workers must call it."""
        if self._strategy is None or self._layout.num_workers == 1:
            return value
        return next((one for one in self._strategy.everyones(topic, value) if one is not None), None)

    # What Keras calls

    def get_tf_dataset(self, transform: keras_seam.OfBatches | None = None) -> Any:
        """Returns the rest of this epoch, distributed over the replicas of the strategy."""
        return self._distributed(transform)

    @property
    def is_short(self) -> bool:
        return bool(self._legs)

    def on_epoch_begin(self) -> None:
        if self.is_short and self._consumer is not None and keras_seam.steps_seen(self._consumer):
            keras_seam.forget_length(self._consumer)

    def on_epoch_end(self) -> None:
        # Keras calls this in the middle of the data too, where it makes `steps_per_epoch` of them.
        if self._consumer is not None and keras_seam.has_run_out(self._consumer):
            keras_seam.forget_length(self._consumer)  # which counts the step that found nothing
            self._next_epoch()

    def begin_epoch(self, consumer: Any, transform: keras_seam.OfBatches | None = None) -> Any:
        """Returns the batches of the next epoch, or of this one where nothing has been taken from it."""
        self._begin(consumer)
        return _Once(self._taken(transform))

    def check_strategy(self, strategy: tf.distribute.Strategy) -> None:
        """Raises a ValueError where a model is trained under another strategy than the data are shared for."""
        theirs = Layout(1, 0, strategy.num_replicas_in_sync)
        if hasattr(strategy, "everyones") or strategy is self._strategy:
            theirs = layout_of(strategy)
        if theirs != self._layout:
            raise ValueError(
                f"Data must be shared for the strategy of the model. Expected: {_said(theirs)}, those of the model's "
                f"{type(strategy).__name__}. Received: data for {_said(self._layout)}. Give `strategy=` to "
                "tfdp.data.shard, and make and compile the model within `with strategy.scope():` of the same one."
            )

    @property
    def batch_size(self) -> int:
        """Examples of a step."""
        return self._options.global_batch_size

    @property
    def has_partial_batch(self) -> bool | None:
        return None

    @property
    def partial_batch_size(self) -> int | None:
        return None

    # Where it stands

    def _current_legs(self) -> list[Leg]:
        steps = self._own_steps if self._consumer is None else keras_seam.steps_seen(self._consumer)
        return [*self._legs, Leg(self._layout.num_workers, self._options.global_batch_size, steps)]

    def _begin(self, consumer: Any) -> None:
        if self._current_legs()[-1].num_steps:
            self._next_epoch()
        self._consumer, self._own_steps = consumer, 0

    def _next_epoch(self) -> None:
        self._source.end_epoch(self._epoch)
        self._stand_at(self._epoch + 1, [])

    def _stand_at(self, epoch: int, legs: list[Leg]) -> None:
        self._epoch, self._legs, self._waiting = epoch, legs, None
        self._options, self._reader = self._usual
        self._consumer, self._own_steps = None, 0

    def _taken(self, transform: keras_seam.OfBatches | None = None) -> Iterator[Any]:
        if self._waiting is None or self._waiting[0] is not transform:
            self._waiting = transform, iter(self._distributed(transform))
        return self._waiting[1]

    def _dataset(self) -> tf.data.Dataset:
        steps = self._agreed_steps(self._legs) if self._options.own_streams else None
        dataset = self._reader.batches(self._epoch, self._legs, steps)
        self._check_that_workers_read_alike()
        return dataset

    def _distributed(self, transform: keras_seam.OfBatches | None = None) -> Any:
        change = transform or (lambda dataset: dataset)
        if self._strategy is None or self._layout.num_replicas == 1:
            return change(self._dataset())
        return self._strategy.distribute_datasets_from_function(lambda context: change(self._dataset()))

    def _check_that_workers_read_alike(self) -> None:
        """Raises a ValueError where what Python gives differs from worker to worker in this epoch."""
        if not isinstance(self._source, PyBatches) or self._layout.num_workers == 1 or self._strategy is None:
            return
        everyones = self._strategy.everyones("the first batch of a PyDataset", self._source.fingerprint())
        for rank, theirs in enumerate(everyones):
            if theirs != everyones[0]:
                raise ValueError(
                    "A PyDataset must give the same batches on all workers: where it shuffles on its own, by a seed "
                    f"that all have. Received: another length or first batch in epoch {self._epoch} on worker {rank} "
                    "than on worker 0."
                )

    def _agreed(self, source: Source, options: Options) -> int:
        """Returns the seed that all workers take; raises where they were given other options."""
        if self._layout.num_workers == 1 or self._strategy is None:
            return options.seed
        mine = {
            "global_batch_size": options.global_batch_size,
            "shuffle_buffer": options.shuffle_buffer,
            "by": options.by,
            "uneven": options.uneven,
            "cache": options.cache,
            "the number of examples": source.num_examples,
            "the sizes of files": list(source.part_sizes),
            "the seeds of its shuffling": [list(seeds) for seeds in source.seeds],
        }
        everyones = self._strategy.everyones("the options of tfdp.data.shard", [options.seed, mine])
        for rank, (_, theirs) in enumerate(everyones):
            for name, own in mine.items():
                if own != theirs[name]:
                    raise ValueError(
                        "tfdp.data.shard must get the same data and options on all workers. Received: "
                        f"{name}: {own!r} on worker {self._layout.worker}, {theirs[name]!r} on worker {rank}."
                    )
        return everyones[0][0]

    def _agreed_steps(self, legs: Sequence[Leg]) -> int | None:
        """Returns the steps that all workers make of what is left where each has a stream of its own; None for all."""
        uneven = self._options.uneven
        if uneven == "exact":
            return None
        everyones = self._everyones(
            "the number of steps of an epoch of sharded data", lambda reader: reader.num_own_steps(legs)
        )
        return min(everyones) if uneven == "drop" else max(everyones)

    def _everyones(self, topic: str, ask: Callable[[Reader], Any]) -> list[Any]:
        """Returns what the readers of all workers answer; all workers must ask."""
        own = ask(self._reader)
        if self._layout.num_workers == 1 or self._strategy is None:
            return [own]
        return self._strategy.everyones(topic, own)

    def _has_ended(self) -> bool:
        """Whether nothing is left of this epoch; reads where nobody knows."""
        if self.num_batches is not None or not self._legs:
            return self.num_batches == 0
        epoch, legs = self._epoch, self._legs
        return not any(self._everyones("whether data are left", lambda reader: reader.has_left(epoch, legs)))

    def _state(self) -> dict[str, Any]:
        legs, options = [leg for leg in self._current_legs() if leg.num_steps], self._options
        return {
            "epoch": self._epoch,
            "legs": legs,
            "seed": options.seed,
            "shuffle_buffer": options.shuffle_buffer,
            "by": options.by,
            "own_streams": options.own_streams,
        }

    def _state_after_epoch(self) -> dict[str, Any]:
        """Returns the state once Keras has ended an epoch, which may not know that no batches are left."""
        cuts_epochs = self._consumer is not None and self._consumer.steps_per_epoch
        if cuts_epochs or not self._current_legs()[-1].num_steps:
            return self._state()  # Keras goes on within this epoch, or has begun the next one
        return {**self._state(), "epoch": self._epoch + 1, "legs": []}

    def _restore(self, state: dict[str, Any]) -> None:
        if state["by"] == "files" and not self._source.part_sizes:
            raise ValueError("The position is one of files. Received: data without files: not those of before.")
        legs = [Leg(*leg) for leg in state["legs"]]
        if legs and not self._source.repeats:
            raise ValueError(
                "A position within an epoch is of data that come in the same order again. Received: data that are "
                "shuffled without a seed, or picked at random, in a function. Give a seed there."
            )
        buffer = state.get("shuffle_buffer", self._options.shuffle_buffer)
        if legs and buffer != self._usual[0].shuffle_buffer:
            raise ValueError(
                "A position within an epoch is of data that are shuffled as before. Expected: "
                f"shuffle_buffer={buffer}. Received: shuffle_buffer={self._usual[0].shuffle_buffer}."
            )
        options = self._usual[0]._replace(seed=state["seed"])
        self._usual = options, Reader(self._source, self._layout, options)
        self._stand_at(state["epoch"], legs)
        begun = options._replace(by=state["by"], own_streams=state["own_streams"])
        if self._legs and begun != options:
            self._options, self._reader = begun, Reader(self._source, self._layout, begun)
        if self._has_ended():
            self._next_epoch()


class Position(tf.train.experimental.PythonState):
    """Where sharded data stands; the same on all workers, and for another number of them."""

    def __init__(self, data: ShardedDataset) -> None:
        super().__init__()
        self._data = data

    def serialize(self) -> str:
        """Returns it as JSON."""
        return json.dumps(self._data._state())

    def serialize_after_epoch(self) -> str:
        """Returns it as JSON where `fit` has come to the end of an epoch: that of the next one."""
        return json.dumps(self._data._state_after_epoch())

    def deserialize(self, string_value: bytes | str) -> None:
        """Lets the data go on where it stood; within an epoch with what is left of it.

        Raises:
            ValueError: it is no position, or one of other data.
        """
        try:
            state = json.loads(string_value)
            read = {**state, "legs": [list(map(operator.index, leg)) for leg in state["legs"]]}
            whole = all(read[name] >= 0 for name in ("epoch", "seed")) and all(len(leg) == 3 for leg in read["legs"])
            if not whole or read["by"] not in ("files", "examples") or not isinstance(read["own_streams"], bool):
                raise ValueError
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                "The position must be what `position.serialize()` of sharded data gave. Received: "
                f"{textwrap.shorten(repr(string_value), 200)}."
            ) from error
        self._data._restore(read)


class _Once:
    """Gives an iterator that has been made already."""

    def __init__(self, iterator: Any) -> None:
        self._iterator = iterator

    def __iter__(self) -> Any:
        return self._iterator


def _said(layout: Layout) -> str:
    return f"{layout.num_workers} worker(s) of {layout.num_local_replicas} replica(s)"


def checked_batch_size(global_batch_size: Any, per_replica_batch_size: Any, num_replicas: int) -> int:
    """Returns the examples of a step.

    Raises:
        ValueError: not exactly one of both is given, or it is less than 1.
        TypeError: it is no integer.
    """
    given = {"global_batch_size": global_batch_size, "per_replica_batch_size": per_replica_batch_size}
    given = {name: value for name, value in given.items() if value is not None}
    if len(given) != 1:
        raise ValueError(
            "One of `global_batch_size` and `per_replica_batch_size` must be given. Received: "
            f"{'both' if given else 'neither'}."
        )
    ((name, size),) = given.items()
    size = checked_count(name, size, least=1)
    return size if name == "global_batch_size" else size * num_replicas


def checked_count(name: str, value: Any, *, least: int) -> int:
    """Returns an integer of at least `least`, or raises a TypeError or ValueError that names it."""
    try:
        if isinstance(value, bool):
            raise TypeError
        count = int(value.__index__())
    except (AttributeError, TypeError):
        raise TypeError(f"`{name}` must be an integer. Received: {name}={value!r}.") from None
    if count < least:
        raise ValueError(f"`{name}` must be at least {least}. Received: {name}={count}.")
    return count


def _check(by: Any, uneven: Any, transform: Any, cache: Any, batched: Any) -> None:
    for name, value, known in (
        ("by", by, ("auto", "files", "examples")),
        ("uneven", uneven, ("exact", "drop", "pad", None)),
    ):
        if value not in known:
            raise ValueError(
                f"`{name}` must be one of {', '.join(repr(one) for one in known if one)}. Received: {name}={value!r}."
            )
    if transform is not None and not callable(transform):
        raise TypeError(f"`map` must be a function of an example. Received: {transform!r}.")
    if not isinstance(cache, bool):
        raise TypeError(f"`cache` must be True or False. Received: cache={cache!r}.")
    if batched is not None and not isinstance(batched, bool):
        raise TypeError(f"`batched` must be True, False or None. Received: batched={batched!r}.")
