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
        function: called once a member with its communicator; runs eagerly. Members take turns, as the replicas of a
            strategy do while they are traced: one runs until it meets the others or ends.

    Raises:
        ValueError: there is no member, or members do not meet in the same calls.
        Exception: what the first failing member raised.
    """
    if size < 1:
        raise ValueError(f"A group has 1 member or more, not {size}.")
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
        self._calls: list[Any] = [None] * size
        self._barrier = threading.Barrier(size, timeout=_DEADLINE_SECONDS)
        self._turn = threading.Lock()
        self._ended: list[int] = []

    def run(self, function: Callable[[Communicator], Any], rank: int) -> Any:
        with self._turn:
            try:
                result = function(_LoopbackCommunicator(self, rank))
                self._ended.append(rank)
                if self._barrier.n_waiting:
                    raise ValueError(f"Member {rank} ends without the call in which others wait for it.")
                return result
            except BaseException:
                self._barrier.abort()
                raise

    def meet(self, rank: int, call: str, value: Any) -> list[Any]:
        """Returns the values of all members, by rank.

        Args:
            rank: who calls.
            call: which call it is: the same for all.
            value: what the others are to see.
        """
        self._calls[rank] = call, value
        self._wait_for_all(call)
        calls = list(self._calls)
        self._wait_for_all(call)
        if len({name for name, _ in calls}) > 1:
            differing = "; ".join(f"member {member} calls {name}" for member, (name, _) in enumerate(calls))
            raise ValueError(f"All members of a group make the same calls in the same order, but {differing}.")
        return [value for _, value in calls]

    def _wait_for_all(self, call: str) -> None:
        if self._ended:
            raise ValueError(f"A member waits in {call} for member {self._ended[0]}, which has ended without it.")
        self._turn.release()
        try:
            self._barrier.wait()
        finally:
            self._turn.acquire()


class _LoopbackCommunicator(Communicator):
    can_branch = True
    can_exchange = True

    def __init__(self, meeting: _Meeting, rank: int) -> None:
        self.size, self.rank, self._meeting = meeting.size, rank, meeting

    def sum(self, tensors: Sequence[tf.Tensor], *, name: str) -> list[tf.Tensor]:
        parts = self._meeting.meet(self.rank, f"sum({name!r})", tensors)
        return [tf.add_n(list(summands)) for summands in zip(*parts, strict=True)]

    def gather(self, tensor: tf.Tensor, *, name: str) -> tf.Tensor:
        return tf.concat(self._meeting.meet(self.rank, f"gather({name!r})", tensor), axis=0)

    def gather_rows(self, tensor: tf.Tensor, *, name: str, counts: tf.Tensor | None = None) -> tf.Tensor:
        return tf.concat(self._meeting.meet(self.rank, f"gather_rows({name!r})", tensor), axis=0)

    def exchange(self, tensor: tf.Tensor, *, name: str) -> tf.Tensor:
        return tf.stack([rows[self.rank] for rows in self._meeting.meet(self.rank, f"exchange({name!r})", tensor)])
