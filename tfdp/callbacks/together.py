"""Workers wait for each other's work on files, and fail together where one of them fails."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

_CHIEF = 0
_CHUNK_BYTES = 1 << 25


def worker_of(strategy: Any) -> int:
    """Returns the rank of this process; 0 without a strategy of tfdp."""
    return getattr(strategy, "worker", _CHIEF)


def num_workers_of(strategy: Any) -> int:
    """Returns the number of processes that train together; 1 without a strategy of tfdp."""
    return getattr(strategy, "num_workers", 1)


@contextlib.contextmanager
def failing_together(strategy: Any, what: str) -> Iterator[None]:
    """Raises on every worker where one has raised within; all workers must enter it.

    Args:
        strategy: that the workers train under.
        what: is done within, for messages: "`ModelCheckpoint`".

    Raises:
        RuntimeError: another worker has raised; says which, and what.
    """
    error = None
    try:
        yield
    except Exception as raised:
        error = raised
    raise_together(strategy, what, error)


def raise_together(strategy: Any, what: str, error: Exception | None) -> None:
    """Raises this worker's error, or one that names another worker's; all workers must call it.

    What the others do may take long: this waits in a collective, which has the time limit of a step.
    """
    if num_workers_of(strategy) > 1 and _sum_over_workers(strategy, np.array([error is not None], np.int64))[0]:
        text = None if error is None else f"{type(error).__name__}: {error}"
        everyones = strategy.everyones(f"an error of {what}", text)
        if error is None:
            failures = [f"on worker {rank}: {one}" for rank, one in enumerate(everyones) if one is not None]
            raise RuntimeError(f"{what} failed {'; '.join(failures)}")
    if error is not None:
        raise error


def told_by(strategy: Any, rank: int, topic: str, value: Any) -> Any:
    """Returns the `value` (of JSON) of one worker; all workers must call it, at much the same time."""
    if num_workers_of(strategy) == 1:
        return value
    return strategy.everyones(topic, value if worker_of(strategy) == rank else None)[rank]


def number_told_by(strategy: Any, rank: int, value: float | None) -> float | None:
    """Returns the number of one worker; all workers must call it, which waits as long as a step may take."""
    bits = np.array([0.0 if value is None else value], np.float64).view(np.int64)
    own = np.array([value is not None, *bits], np.int64)
    has_any, *told = _sum_over_workers(strategy, own if worker_of(strategy) == rank else np.zeros_like(own))
    return float(np.array(told, np.int64).view(np.float64)[0]) if has_any else None


def receive_file(strategy: Any, chiefs: Path | None, num_bytes: int, own: Path) -> None:
    """Writes the chief's file to `own` on all other workers; all workers must call it.

    Args:
        strategy: that the workers train under.
        chiefs: the file, on the chief; not used elsewhere.
        num_bytes: of the file.
        own: where the others write it, a file that is not there yet.

    Raises:
        OSError: this worker cannot read or write.
    """
    is_chief = worker_of(strategy) == _CHIEF
    assert chiefs is not None or not is_chief
    error = None
    for begin in range(0, num_bytes, _CHUNK_BYTES):
        size = min(_CHUNK_BYTES, num_bytes - begin)
        padded = np.zeros(-(-size // 8) * 8, np.uint8)
        # Who cannot read or write takes part to the end all the same: the others wait in the sum.
        try:
            if is_chief and chiefs is not None:
                padded[:size] = np.fromfile(chiefs, np.uint8, size, offset=begin)
        except (OSError, ValueError) as raised:
            error = raised
        # Of int64, which all-reduce takes on every device: the sum of one value and zeros is exact.
        received = _sum_over_workers(strategy, padded.view(np.int64)).view(np.uint8)[:size]
        try:
            if not is_chief:
                with own.open("ab") as file:
                    file.write(received.tobytes())
        except OSError as raised:
            error = raised
    if error is not None:
        raise error


def _sum_over_workers(strategy: Any, value: np.ndarray) -> np.ndarray:
    """Returns the sum of every worker's int64 `value`, which the first of its replicas brings."""
    num_local = len(strategy.extended.worker_devices)

    def of_replica(context: Any) -> tf.Tensor:
        is_first = context.replica_id_in_sync_group % num_local == 0
        return tf.constant(value if is_first else np.zeros_like(value))

    per_replica = strategy.experimental_distribute_values_from_function(of_replica)
    return strategy.reduce(tf.distribute.ReduceOp.SUM, per_replica, axis=None).numpy()
