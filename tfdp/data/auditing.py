"""The audit of sharded data: all workers are played in one process, and what they get is held against the data."""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfdp.data.contents import Content, content_transforms, contents
from tfdp.data.findings import Audit, EpochAudit, WorkerEpoch
from tfdp.data.layout import Layout, assigned, layout_of
from tfdp.data.pipeline import Options, Reader
from tfdp.data.sharding import ShardedDataset, checked_count, shared
from tfdp.data.sources import Source

_READ_AT_ONCE = 256
_NUM_SHOWN = 5  # positions of examples that are missing or came too often


def audit(
    dataset: Any,
    *,
    num_workers: int | None = None,
    num_replicas_per_worker: int | None = None,
    epochs: int = 2,
    strategy: tf.distribute.Strategy | None = None,
    label: Callable[..., Any] | int | str | None = None,
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
) -> Audit:
    """Returns whether `tfdp.data.shard` gives every example once an epoch, found by reading as all workers would.

    It starts no worker and needs no strategy: this process plays one worker after the other. An example is known by
    its content before `map`; equal examples are counted. The data are read once for each epoch, twice more, and by
    every worker where all read the same stream; a digest of each example is kept in memory.

    Example:
        >>> import numpy as np, tfdp
        >>> x = np.arange(10, dtype="float32")[:, np.newaxis]
        >>> found = tfdp.data.audit((x, x), num_workers=2, global_batch_size=4)
        >>> found.is_right, [worker.num_examples for worker in found.epochs[0].workers]
        (True, [5, 5])

    Args:
        dataset: what `tfdp.data.shard` takes.
        num_workers: to play; None for those of the strategy, or one.
        num_replicas_per_worker: of each; None for those of the strategy, or one.
        epochs: how many to read, from the first on.
        strategy: whose workers and replicas to play; None for the one whose scope this is called in, if any.
        label: a function of an example after `map`, called as `map` is, that gives an integer, string or bool; or an
            index or key into the example. None takes the second of a pair (x, y) where it is an integer scalar.
        global_batch_size: this and what follows are as in `tfdp.data.shard`.
        per_replica_batch_size: see there.
        shuffle_buffer: see there.
        seed: see there.
        by: see there.
        uneven: see there.
        split: see there.
        batched: see there.
        map: see there.
        cache: see there.

    Raises:
        ValueError: an argument is out of range, or the data cannot be shared in this way.
        TypeError: `dataset` is of a kind that is not known.
    """
    layout = _layout(num_workers, num_replicas_per_worker, strategy)
    num_epochs = checked_count("epochs", epochs, least=1)
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
    transforms = content_transforms(options.transform, label=label, has_weights=options.uneven == "pad")
    # Contents are of one size, whatever the examples are: they need no batching of their own.
    options = options._replace(transform=transforms, batch=None)
    plain = _Plain(source, transforms)
    workers = simulated_workers(source, options, layout)
    read = [_read_epoch(workers, epoch, layout, plain) for epoch in range(num_epochs)]
    # The last one, as a PyDataset that changes itself does not go back.
    again = _read_epoch(simulated_workers(source, options, layout), num_epochs - 1, layout, plain)
    differ = any(epoch.num_unknown or (epoch.num_missing and options.uneven != "drop") for epoch in read)
    return Audit(
        source=source.name,
        num_examples=plain.num_examples,
        num_distinct=len(plain.counts),
        num_workers=layout.num_workers,
        num_replicas_per_worker=layout.num_local_replicas,
        global_batch_size=options.global_batch_size,
        shuffle_buffer=options.shuffle_buffer,
        seed=options.seed,
        uneven=options.uneven,
        by=options.by,
        reason=reason,
        num_droppable=_num_droppable(source, options, layout, plain.num_examples),
        num_promised_steps=workers[0].num_batches,
        is_constant=not differ or _Plain(source, transforms).counts == plain.counts,
        order_repeats=_orders(again) == _orders(read[-1]),
        labels=plain.labels,
        epochs=tuple(read),
    )


class SimulatedWorker(ShardedDataset):
    """The data of one worker of several that are all in this process.

    Args:
        source: what is shared.
        options: how.
        layout: of this worker.
        crew: grows to all workers, this one too, before anything is read.
    """

    def __init__(self, source: Source, options: Options, layout: Layout, crew: "Sequence[SimulatedWorker]") -> None:
        self._crew = crew
        super().__init__(source, options, layout)

    def _everyones(self, topic: str, ask: Callable[[Reader], Any]) -> list[Any]:
        return [ask(worker._reader) for worker in self._crew]


def simulated_workers(source: Source, options: Options, layout: Layout) -> list[SimulatedWorker]:
    """Returns the data of all workers of a layout."""
    crew: list[SimulatedWorker] = []
    for worker in range(layout.num_workers):
        crew.append(SimulatedWorker(source, options, layout._replace(worker=worker), crew))
    return crew


class _Plain:
    """What a source gives when it is read as a whole."""

    def __init__(self, source: Source, transforms: Sequence[Callable[..., Any]]) -> None:
        self.num_examples = 0
        self.counts: Counter[bytes] = Counter()
        self.labels: Counter[int | str] = Counter()
        self.positions: dict[bytes, int] = {}  # of the first of equal examples
        examples = source.examples()
        for transform in transforms:
            examples = examples.map(transform, num_parallel_calls=tf.data.AUTOTUNE)
        for batch in contents(examples.batch(_READ_AT_ONCE)):
            for content in batch:
                self.positions.setdefault(content.digest, self.num_examples)
                self.num_examples += 1
                self.counts[content.digest] += 1
                if content.label is not None:
                    self.labels[content.label] += 1


def _read_epoch(workers: Sequence[ShardedDataset], epoch: int, layout: Layout, plain: _Plain) -> EpochAudit:
    counts: Counter[bytes] = Counter()
    read = [
        _read_worker(contents(worker.local_batches(epoch)), index, layout.num_local_replicas, counts)
        for index, worker in enumerate(workers)
    ]
    missing, surplus = plain.counts - counts, counts - plain.counts
    duplicates = Counter({digest: count for digest, count in surplus.items() if digest in plain.counts})
    return EpochAudit(
        epoch=epoch,
        workers=tuple(read),
        num_missing=missing.total(),
        num_duplicates=duplicates.total(),
        num_unknown=surplus.total() - duplicates.total(),
        missing=_first_positions(missing, plain),
        duplicates=_first_positions(duplicates, plain),
    )


def _read_worker(
    batches: Iterator[list[Content]], worker: int, num_local_replicas: int, counts: Counter[bytes]
) -> WorkerEpoch:
    """Returns what a worker got, and adds its examples to `counts`."""
    order = hashlib.blake2b(digest_size=16)
    labels: Counter[int | str] = Counter()
    num_batches = num_examples = num_bytes = num_padded = 0
    for batch in batches:
        num_batches += 1
        for content in batch:
            if content.is_padding:
                num_padded += 1
                continue
            num_examples += 1
            num_bytes += content.num_bytes
            counts[content.digest] += 1
            order.update(content.digest)
            if content.label is not None:
                labels[content.label] += 1
    return WorkerEpoch(
        worker=worker,
        num_examples=num_examples,
        num_steps=-(-num_batches // num_local_replicas),
        num_bytes=num_bytes,
        num_padded=num_padded,
        labels=labels,
        order=order.hexdigest(),
    )


def _num_droppable(source: Source, options: Options, layout: Layout, num_examples: int) -> int:
    """Returns how many examples uneven="drop" leaves out: those that do not fill a batch on all workers."""
    size = options.global_batch_size
    if options.uneven != "drop":
        return 0
    if options.by != "files":
        return num_examples % size
    shares = [
        int(source.examples(parts).reduce(tf.zeros([], tf.int64), lambda count, *_: count + 1)) if parts else 0
        for parts in assigned(source.part_sizes, layout.num_workers)
    ]
    return num_examples - min(share // (size // layout.num_workers) for share in shares) * size


def _first_positions(counts: Counter[bytes], plain: _Plain) -> tuple[int, ...]:
    return tuple(sorted(plain.positions[digest] for digest in counts)[:_NUM_SHOWN])


def _orders(epoch: EpochAudit) -> list[str]:
    return [worker.order for worker in epoch.workers]


def _layout(num_workers: Any, num_replicas_per_worker: Any, strategy: tf.distribute.Strategy | None) -> Layout:
    strategy = strategy or (tf.distribute.get_strategy() if tf.distribute.has_strategy() else None)
    default = Layout() if strategy is None else layout_of(strategy)
    if num_workers is None:
        num_workers = default.num_workers
    if num_replicas_per_worker is None:
        num_replicas_per_worker = default.num_local_replicas
    return Layout(
        checked_count("num_workers", num_workers, least=1),
        0,
        checked_count("num_replicas_per_worker", num_replicas_per_worker, least=1),
    )
