"""What an audit of a data set finds, and what follows from it."""

import io
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import rich.box
import rich.console
import rich.table
import rich.text

from tfdp.data.layout import Layout
from tfdp.data.order import own_size

_UNLIKELY = 1e-6  # that shuffling gives one order twice, before this is called a fault
_UNEVEN_BYTES = 1.1  # what the busiest worker may read, in means, before a note says so
_UNEVEN_LABELS = 0.1  # how far a worker's labels may be from those of all, beyond what chance does
_TEXT_WIDTH = 120


@dataclass(frozen=True)
class WorkerEpoch:
    """What one worker got in one epoch.

    Attributes:
        worker: from 0.
        num_examples: without those that fill up batches.
        num_steps: that it takes.
        num_bytes: of the examples as their source gives them.
        num_padded: rows of weight zero.
        labels: how many examples have each label; empty where they have none.
        order: a digest of its examples in their order.
    """

    worker: int
    num_examples: int
    num_steps: int
    num_bytes: int
    num_padded: int
    labels: Mapping[int | str, int]
    order: str


@dataclass(frozen=True)
class EpochAudit:
    """What all workers got in one epoch, beside what the data hold.

    Attributes:
        epoch: from 0.
        workers: by number.
        num_missing: examples that did not come.
        num_duplicates: how often examples came beyond what the data hold of them.
        num_unknown: examples that came and that the data do not hold.
        missing: positions of a few of the missing ones in the source's order; of equal examples, of the first.
        duplicates: likewise, of those that came too often.
    """

    epoch: int
    workers: tuple[WorkerEpoch, ...]
    num_missing: int = 0
    num_duplicates: int = 0
    num_unknown: int = 0
    missing: tuple[int, ...] = ()
    duplicates: tuple[int, ...] = ()

    @property
    def steps_are_equal(self) -> bool:
        """Whether all workers take as many steps."""
        return len({worker.num_steps for worker in self.workers}) == 1


@dataclass(frozen=True)
class Audit:
    """What `tfdp.data.audit` found. `str()` gives it as plain text.

    Attributes:
        source: what was read.
        num_examples: that it holds.
        num_distinct: of them, counting equal ones once.
        num_workers: that were simulated.
        num_replicas_per_worker: of each.
        global_batch_size: examples of a step, of all replicas.
        shuffle_buffer: how many examples a shuffled one was drawn from; 0 keeps their order.
        seed: of all orders.
        uneven: what became of last batches: "exact", "drop" or "pad".
        by: "files" or "examples".
        reason: why.
        num_droppable: examples that uneven="drop" may leave out.
        num_promised_steps: of an epoch, as `fit` is told; None where it is not.
        is_constant: whether the source gives the same examples each time; looked for only where examples differ.
        order_repeats: whether the same seed gives the same order again.
        labels: how many examples have each label; empty where they have none.
        epochs: what was read.
    """

    source: str
    num_examples: int
    num_distinct: int
    num_workers: int
    num_replicas_per_worker: int
    global_batch_size: int
    shuffle_buffer: int
    seed: int
    uneven: str
    by: str
    reason: str
    num_droppable: int
    num_promised_steps: int | None
    is_constant: bool
    order_repeats: bool
    labels: Mapping[int | str, int]
    epochs: tuple[EpochAudit, ...]

    @property
    def order_differs(self) -> bool | None:
        """Whether each epoch has an order of its own; None of a single epoch."""
        orders = [tuple(worker.order for worker in epoch.workers) for epoch in self.epochs]
        return None if len(orders) == 1 else len(set(orders)) == len(orders)

    @property
    def bytes_balance(self) -> float:
        """What the worker with most bytes of an epoch read, over the mean of all; that of the worst epoch."""
        return max(_over_mean([worker.num_bytes for worker in epoch.workers]) for epoch in self.epochs)

    @property
    def label_distance(self) -> float | None:
        """The largest total variation distance of a worker's shares of labels from those of all data, in [0, 1]."""
        if not self.labels:
            return None
        return max((_distance(worker.labels, self.labels) for worker in self._all_workers()), default=0.0)

    @property
    def problems(self) -> list[str]:
        """What is wrong, in sentences; none where the data are sharded rightly."""
        found = [] if self.num_examples else ["The data hold no example."]
        found += [text for epoch in self.epochs for text in self._problems_of(epoch)]
        if not self.is_constant:
            found.append(
                "The data are not the same each time they are read: something in them is random, or changes them. Give "
                "it a fixed seed, or do it in `map`."
            )
        found += self._same_orders() if self.shuffle_buffer else []
        if not self.order_repeats:
            found.append(
                f"Epoch {self.epochs[-1].epoch} came in another order when it was read again with the same seed."
            )
        promised = self.num_promised_steps
        most = max(worker.num_steps for worker in self.epochs[0].workers)
        if promised is not None and promised != most:
            found.append(f"`fit` is told of {_count(promised, 'step')} an epoch, where workers take up to {most}.")
        return found

    @property
    def notes(self) -> list[str]:
        """What is not wrong and yet worth knowing, in sentences."""
        found = []
        first = self.epochs[0]
        if self.uneven == "exact" and not first.steps_are_equal:
            found.append(
                f"Workers take {_joined(worker.num_steps for worker in first.workers)} steps: those that are done "
                "first go on with empty batches until the last one is."
            )
        idle = [worker for worker in range(self.num_workers) if not self._rows_of(worker)]
        if idle:
            found.append(
                f"A batch of {self.global_batch_size} has no row for {_workers(idle)}: take a larger one, or fewer "
                "workers."
            )
        elif self.bytes_balance > _UNEVEN_BYTES:
            found.append(f"One worker reads {self.bytes_balance:.2f} times the mean of all, in bytes.")
        far = sorted({worker.worker for worker in self._all_workers() if self._has_other_labels(worker)})
        if far:
            remedy = (
                "shuffle the examples before you write the files, or use by='examples'" if self.by == "files" else ""
            )
            found.append(
                f"The labels of {_workers(far)} are not shared out as those of all data are"
                f"{f': {remedy}' if remedy else ''}."
            )
        return found

    @property
    def is_right(self) -> bool:
        """Whether there are no problems."""
        return not self.problems

    def as_dict(self) -> dict[str, Any]:
        """Returns all that was found, as JSON has it; labels are strings."""
        result = asdict(self) | {
            "order_differs": self.order_differs,
            "bytes_balance": self.bytes_balance,
            "label_distance": self.label_distance,
            "is_right": self.is_right,
            "problems": self.problems,
            "notes": self.notes,
            "labels": _with_strings(self.labels),
        }
        for epoch, own in zip(result["epochs"], self.epochs, strict=True):
            epoch["steps_are_equal"] = own.steps_are_equal
            epoch["workers"] = [worker | {"labels": _with_strings(worker["labels"])} for worker in epoch["workers"]]
            epoch["missing"], epoch["duplicates"] = list(own.missing), list(own.duplicates)
        return result | {"epochs": list(result["epochs"])}

    def as_table(self) -> rich.console.Group:
        """Returns it for a `rich.console.Console` to print."""
        return self._group(rich.box.SIMPLE_HEAD)

    def __str__(self) -> str:
        out = io.StringIO()
        console = rich.console.Console(file=out, width=_TEXT_WIDTH, color_system=None, force_terminal=False)
        console.print(self._group(None))
        return "\n".join(line.rstrip() for line in out.getvalue().splitlines())

    def _all_workers(self) -> Iterator[WorkerEpoch]:
        return itertools.chain.from_iterable(epoch.workers for epoch in self.epochs)

    def _rows_of(self, worker: int) -> int:
        return own_size(Layout(self.num_workers, worker, self.num_replicas_per_worker), self.global_batch_size)

    def _problems_of(self, epoch: EpochAudit) -> Iterator[str]:
        begin = f"In epoch {epoch.epoch}, "
        if epoch.num_duplicates:
            yield (
                f"{begin}{_count(epoch.num_duplicates, 'example')} came more often than the data hold them, such as at "
                f"{_positions(epoch.duplicates)}."
            )
        if epoch.num_unknown:
            yield f"{begin}{_count(epoch.num_unknown, 'example')} came that the data do not hold."
        if epoch.num_missing and self.uneven != "drop":
            yield (
                f"{begin}{_count(epoch.num_missing, 'example')} did not come, such as at {_positions(epoch.missing)}."
            )
        elif epoch.num_missing != self.num_droppable and self.uneven == "drop":
            yield (
                f"{begin}{_count(epoch.num_missing, 'example')} did not come, where {self.num_droppable} fill no batch."
            )
        if self.uneven == "exact":
            return
        busy = [worker for worker in epoch.workers if self._rows_of(worker.worker)]
        if len({worker.num_steps for worker in busy}) > 1:
            yield (
                f"{begin}workers take {_joined(worker.num_steps for worker in busy)} steps, where all must take as "
                f"many with uneven={self.uneven!r}."
            )
        for worker in epoch.workers:
            rows, wanted = worker.num_examples + worker.num_padded, worker.num_steps * self._rows_of(worker.worker)
            if rows != wanted:
                yield (
                    f"{begin}worker {worker.worker} got {_count(rows, 'row')} in {_count(worker.num_steps, 'step')}, "
                    f"where full batches hold {wanted}."
                )

    def _same_orders(self) -> Iterator[str]:
        """Says which workers took their examples twice in one order, where chance does not do that."""
        for one, other in itertools.combinations(self.epochs, 2):
            same = [
                first.worker
                for first, second in zip(one.workers, other.workers, strict=True)
                if first.order == second.order and self._shuffles(first)
            ]
            if same:
                yield (
                    f"{_workers(same).capitalize()} took the examples of epochs {one.epoch} and {other.epoch} in the "
                    "same order, although they are shuffled."
                )

    def _shuffles(self, worker: WorkerEpoch) -> bool:
        num_different = min(worker.num_examples, self.num_distinct)
        buffer = min(self.shuffle_buffer, num_different)
        log_orders = math.lgamma(buffer + 1) + (num_different - buffer) * math.log(max(buffer, 1))
        return log_orders > -math.log(_UNLIKELY)

    def _has_other_labels(self, worker: WorkerEpoch) -> bool:
        if not self.labels or not worker.num_examples:
            return False
        by_chance = math.sqrt(len(self.labels) / worker.num_examples)
        return _distance(worker.labels, self.labels) > _UNEVEN_LABELS + by_chance

    def _group(self, box: rich.box.Box | None) -> rich.console.Group:
        verdict = [*(f"PROBLEM: {text}" for text in self.problems), *(f"Note: {text}" for text in self.notes)]
        gap = [""] if box is None else []  # the boxes of others end with an empty line
        texts = [*gap, *verdict] if verdict else []
        parts: list[rich.console.RenderableType] = [
            _title(self),
            *gap,
            _by_worker(self, box),
            *gap,
            _summary(self, box),
            *texts,
        ]
        return rich.console.Group(*[rich.text.Text(part) if isinstance(part, str) else part for part in parts])


def _title(audit: Audit) -> str:
    replicas = _count(audit.num_replicas_per_worker, "replica")
    return (
        f"{audit.source}: {_count(audit.num_examples, 'example')} for {_count(audit.num_workers, 'worker')} of "
        f"{replicas}, in batches of {audit.global_batch_size}\nby {audit.by}: {audit.reason}"
    )


def _by_worker(audit: Audit, box: rich.box.Box | None) -> rich.table.Table:
    table = rich.table.Table(box=box, pad_edge=False, collapse_padding=True)
    for name in ("epoch", "worker", "examples", "steps", "bytes", "padded", "missing", "too often", "unknown"):
        table.add_column(name, justify="right", no_wrap=True)
    for epoch in audit.epochs:
        for worker in epoch.workers:
            counts = (worker.num_examples, worker.num_steps, worker.num_bytes, worker.num_padded)
            table.add_row(str(epoch.epoch), str(worker.worker), *(f"{count:,}" for count in counts))
        sums = [sum(counts) for counts in zip(*(_sums(worker) for worker in epoch.workers), strict=True)]
        most = max(worker.num_steps for worker in epoch.workers)
        counts = (sums[0], most, *sums[1:], epoch.num_missing, epoch.num_duplicates, epoch.num_unknown)
        table.add_row(str(epoch.epoch), "all", *(f"{count:,}" for count in counts), end_section=True)
    return table


def _sums(worker: WorkerEpoch) -> tuple[int, int, int]:
    return worker.num_examples, worker.num_bytes, worker.num_padded


def _summary(audit: Audit, box: rich.box.Box | None) -> rich.table.Table:
    table = rich.table.Table(box=box, show_header=False, pad_edge=False, collapse_padding=True)
    order = "shuffled" if audit.shuffle_buffer else "not shuffled"
    rows = [
        ("each epoch has an order of its own", f"{_yes(audit.order_differs)} ({order})"),
        ("the same seed gives the same order", f"{_yes(audit.order_repeats)} (seed {audit.seed})"),
        ("bytes of the busiest worker, over the mean", f"{audit.bytes_balance:.3f}"),
    ]
    if audit.label_distance is not None:
        among = _count(len(audit.labels), "label")
        rows.append(("labels of a worker, distance from all data", f"{audit.label_distance:.3f} at most ({among})"))
    rows.append(("sharded rightly", "yes" if audit.is_right else "NO"))
    for row in rows:
        table.add_row(*row)
    return table


def _yes(value: bool | None) -> str:
    return {True: "yes", False: "no", None: "one epoch was read"}[value]


def _over_mean(counts: Sequence[int]) -> float:
    total = sum(counts)
    return max(counts) * len(counts) / total if total else 1.0


def _distance(some: Mapping[int | str, int], every: Mapping[int | str, int]) -> float:
    """Returns half the sum of the differences of shares; 0 for nothing."""
    num_some, num_every = sum(some.values()), sum(every.values())
    if not num_some or not num_every:
        return 0.0
    names = some.keys() | every.keys()
    return sum(abs(some.get(name, 0) / num_some - every.get(name, 0) / num_every) for name in names) / 2


def _with_strings(labels: Mapping[int | str, int]) -> dict[str, int]:
    return {str(name): count for name, count in labels.items()}


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _joined(items: Any) -> str:
    *first, last = map(str, items)
    return f"{', '.join(first)} and {last}" if first else last


def _positions(positions: Sequence[int]) -> str:
    return f"position{'s' if len(positions) > 1 else ''} {_joined(positions)} of the data"


def _workers(workers: Sequence[int]) -> str:
    return f"worker{'s' if len(workers) > 1 else ''} {_joined(workers)}"
