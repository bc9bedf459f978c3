"""A communicator between threads of one process: compressors can be tried and tested without devices."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import tensorflow as tf

from tfdp.collectives.base import Communicator

_DEADLINE_SECONDS = 60.0


def loopback(size: int, function: Callable[[Communicator], Any]) -> list[Any]:
    """Returns what `function` returns for each of `size` members, which run in threads and meet in their communicators.

    Example:
        >>> import tensorflow as tf
        >>> loopback(2, lambda comm: float(comm.sum([tf.constant(comm.rank + 1.0)], name="x")[0]))
        [3.0, 3.0]

    Args:
        size: the number of members.
        function: called once a member with its communicator; runs eagerly.

    Raises:
        Exception: what the first failing member raised.
    """
    meeting = _Meeting(size)
    with ThreadPoolExecutor(size) as pool:
        members = [pool.submit(meeting.run, function, rank) for rank in range(size)]
    errors = [error for member in members if (error := member.exception()) is not None]
    causes = [error for error in errors if not isinstance(error, threading.BrokenBarrierError)]
    if errors:
        raise (causes or errors)[0]
    return [member.result() for member in members]


class _Meeting:
    def __init__(self, size: int) -> None:
        self.size = size
        self.values: list[Any] = [None] * size
        self.barrier = threading.Barrier(size, timeout=_DEADLINE_SECONDS)

    def run(self, function: Callable[[Communicator], Any], rank: int) -> Any:
        try:
            return function(_LoopbackCommunicator(self, rank))
        except BaseException:
            self.barrier.abort()
            raise

    def exchange(self, rank: int, value: Any) -> list[Any]:
        self.values[rank] = value
        self.barrier.wait()
        values = list(self.values)
        self.barrier.wait()
        return values


class _LoopbackCommunicator(Communicator):
    can_branch = True
    can_exchange = True

    def __init__(self, meeting: _Meeting, rank: int) -> None:
        self.size, self.rank, self._meeting = meeting.size, rank, meeting

    def sum(self, tensors: Sequence[tf.Tensor], *, name: str) -> list[tf.Tensor]:
        return [tf.add_n(list(parts)) for parts in zip(*self._meeting.exchange(self.rank, tensors), strict=True)]

    def gather(self, tensor: tf.Tensor, *, name: str) -> tf.Tensor:
        return tf.concat(self._meeting.exchange(self.rank, tensor), axis=0)

    def gather_rows(self, tensor: tf.Tensor, *, name: str, counts: tf.Tensor | None = None) -> tf.Tensor:
        return self.gather(tensor, name=name)

    def exchange(self, tensor: tf.Tensor, *, name: str) -> tf.Tensor:
        return tf.stack([rows[self.rank] for rows in self._meeting.exchange(self.rank, tensor)])
