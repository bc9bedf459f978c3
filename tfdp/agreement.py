"""Workers compare what they are about to do before they meet in a collective, where a difference would hang them."""

import contextlib
import json
import time
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from tfdp import tf_seam, topology

# How long a chief that is about to raise an error waits for the others to see why.
_LAST_SECONDS = 5.0


class Agreement:
    """The calls in which workers compare notes; every worker makes the same ones in the same order."""

    def __init__(self, cluster: topology.Cluster | None, strategy_number: int, timeout_seconds: float) -> None:
        """Compares between the workers of a cluster.

        Args:
            cluster: the workers; with None or one there is nothing to compare.
            strategy_number: tells strategies of one process apart.
            timeout_seconds: how long to wait for each of the others, where a call does not say it.
        """
        self._cluster = cluster if cluster is not None and cluster.num_workers > 1 else None
        self._strategy_number, self._timeout_seconds = strategy_number, timeout_seconds
        self._num_calls = 0

    def agree(self, topic: str, lines: Sequence[str], names: Sequence[str] = ()) -> None:
        """Returns where the workers' next calls have the same topic and lines.

        The chief compares with everyone, everyone else with the chief.

        Args:
            topic: what is about to happen.
            lines: what must be equal on all workers.
            names: what the lines are about, one each, for messages; they may differ.

        Raises:
            ValueError: they differ.
            RuntimeError: a worker did not come in time.
        """
        if self._cluster is None:
            return
        ours = {"topic": topic, "lines": list(lines), "names": list(names)}
        peers = range(1, self._cluster.num_workers) if self._cluster.is_chief else range(1)
        for rank, theirs in self._exchange(ours, peers).items():
            if theirs["lines"] != ours["lines"]:
                self._let_others_see()
                raise ValueError(f"Workers must agree on {topic}. {difference(ours, theirs)} {self._where(rank)}.")

    def exchange(self, topic: str, value: Any, timeout_seconds: float | None = None) -> list[Any]:
        """Returns the `value` (of JSON) of every worker, by rank; raises as `agree` does."""
        if self._cluster is None:
            return [value]
        ranks = range(self._cluster.num_workers)
        ours = {"topic": topic, "lines": [], "names": [], "value": value}
        others = self._exchange(ours, [rank for rank in ranks if rank != self._cluster.rank], timeout_seconds)
        return [others.get(rank, ours)["value"] for rank in ranks]

    def all_come(self, topic: str, timeout_seconds: float) -> bool:
        """Returns whether all workers call this, each within `timeout_seconds` of when the others look for it.

        Those that do call it get the same answer: the first one to know it writes it down for all.

        Args:
            topic: what is called for; those that are meant to meet have exchanged as much before as this worker.
            timeout_seconds: how long to wait for all others together.
        """
        if self._cluster is None:
            return True
        prefix = f"tfdp/strategy {self._strategy_number}/vote {self._num_calls}/{topic}"
        tf_seam.publish(f"{prefix}/{self._cluster.rank}", "")
        try:
            _wait_for(prefix, range(self._cluster.num_workers), timeout_seconds)
            answer = "all"
        except tf.errors.DeadlineExceededError:
            answer = "not all"
        try:
            tf_seam.publish(f"{prefix}/answer", answer)
        except tf.errors.AlreadyExistsError:
            answer = tf_seam.read_published(f"{prefix}/answer", self._timeout_seconds)
        return answer == "all"

    def leave(self, timeout_seconds: float) -> None:
        """Waits until all workers have come out of their last collective, at most for a while.

        Else a process that ends at once takes along what another one still waits for. The chief, which keeps what
        workers write down for each other, leaves last.
        """
        if self._cluster is None:
            return
        prefix = f"tfdp/strategy {self._strategy_number}/leave {self._next_call()}"
        with contextlib.suppress(tf.errors.OpError):
            if not self._cluster.is_chief:
                _wait_for(prefix, [0], timeout_seconds)
                tf_seam.publish(f"{prefix}/{self._cluster.rank}", "")
                return
            tf_seam.publish(f"{prefix}/0", "")
            _wait_for(prefix, range(1, self._cluster.num_workers), timeout_seconds)
            for rank in range(self._cluster.num_workers):
                tf_seam.unpublish(f"{prefix}/{rank}")

    def _exchange(self, ours: dict, peers: Iterable[int], timeout_seconds: float | None = None) -> dict[int, dict]:
        cluster = self._cluster
        assert cluster is not None
        seconds = timeout_seconds or self._timeout_seconds
        prefix = f"tfdp/strategy {self._strategy_number}/agreement {self._next_call()}"
        tf_seam.publish(f"{prefix}/{cluster.rank}", json.dumps(ours))
        received = {}
        for rank in peers:
            try:
                theirs = json.loads(tf_seam.read_published(f"{prefix}/{rank}", seconds))
            except tf.errors.DeadlineExceededError as error:
                raise RuntimeError(
                    f"{cluster.name(cluster.rank)} waited {seconds:g} s for {cluster.name(rank)} to come "
                    f"to the same point: {ours['topic']}. Every worker must run the same program with the same model."
                ) from error
            if theirs["topic"] != ours["topic"]:
                self._let_others_see()
                raise ValueError(
                    f"Workers must agree on what comes next. Received: {describe(ours)} here, {describe(theirs)} there "
                    f"{self._where(rank)}. Every worker must run the same program with the same model."
                )
            received[rank] = theirs
        return received

    def _let_others_see(self) -> None:
        """Lets the chief, which keeps what workers write down, live until all others have seen how they differ."""
        assert self._cluster is not None
        prefix = f"tfdp/strategy {self._strategy_number}/seen {self._num_calls}"
        with contextlib.suppress(tf.errors.OpError):
            if self._cluster.is_chief:
                _wait_for(prefix, range(1, self._cluster.num_workers), _LAST_SECONDS)
            else:
                tf_seam.publish(f"{prefix}/{self._cluster.rank}", "")

    def _next_call(self) -> int:
        self._num_calls += 1
        return self._num_calls

    def _where(self, rank: int) -> str:
        assert self._cluster is not None
        return f"(here: {self._cluster.name(self._cluster.rank)}, there: {self._cluster.name(rank)})"


def _wait_for(prefix: str, ranks: Iterable[int], timeout_seconds: float) -> None:
    """Waits until all of `ranks` have published under `prefix`, for at most `timeout_seconds` in all."""
    end = time.monotonic() + timeout_seconds
    for rank in ranks:
        tf_seam.read_published(f"{prefix}/{rank}", end - time.monotonic())


def describe(item: dict) -> str:
    """Returns what a worker is about to do, in short."""
    lines = _named_lines(item)
    return item["topic"] + (f" {lines[0]!r}" if len(lines) == 1 else "")


def difference(ours: dict, theirs: dict) -> str:
    """Returns a sentence on the first line in which two workers differ."""
    here, there = _named_lines(ours), _named_lines(theirs)
    for i, (our_line, their_line) in enumerate(zip(ours["lines"], theirs["lines"], strict=False)):
        if our_line != their_line:
            return f"Received: {here[i]!r} here, {there[i]!r} there"
    extra, side = (here, "here") if len(here) > len(there) else (there, "there")
    return f"Received: {extra[min(len(here), len(there))]!r} only {side}"


def _named_lines(item: dict) -> list[str]:
    names = item["names"] or [""] * len(item["lines"])
    return [f"{name} {line}".strip() for name, line in zip(names, item["lines"], strict=True)]
