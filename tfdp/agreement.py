"""Workers compare what they are about to do before they meet in a collective, where a difference would hang them."""

import json
from collections.abc import Callable

import tensorflow as tf

from tfdp import tf_seam, topology


def between_workers(
    cluster: topology.Cluster | None, strategy_number: int, timeout_seconds: float
) -> Callable[[str, list[str]], None]:
    """Returns agree(topic, lines), which raises unless every worker calls it with the same topic and lines.

    Args:
        cluster: the workers; with None or one there is nothing to compare.
        strategy_number: tells strategies of one process apart.
        timeout_seconds: how long to wait for each of the others.
    """
    if cluster is None or cluster.num_workers == 1:
        return lambda topic, lines: None

    def agree(topic: str, lines: list[str]) -> None:
        prefix = f"tfdp/strategy {strategy_number}/{topic}"
        tf_seam.publish(f"{prefix}/{cluster.rank}", json.dumps(lines))
        for rank in range(cluster.num_workers):
            if rank == cluster.rank:
                continue
            try:
                theirs = json.loads(tf_seam.read_published(f"{prefix}/{rank}", timeout_seconds))
            except tf.errors.DeadlineExceededError as error:
                raise RuntimeError(
                    f"{cluster.name(cluster.rank)} waited {timeout_seconds:g} s for {cluster.name(rank)} to come to "
                    f"the same point: {topic}. Every worker must run the same program with the same model."
                ) from error
            if theirs != lines:
                raise ValueError(
                    f"Workers must agree on {topic}. {difference(lines, theirs)} "
                    f"(here: {cluster.name(cluster.rank)}, there: {cluster.name(rank)})."
                )

    return agree


def difference(ours: list[str], theirs: list[str]) -> str:
    """Returns a sentence on the first line in which two workers differ."""
    for here, there in zip(ours, theirs, strict=False):
        if here != there:
            return f"Received: {here!r} here, {there!r} there"
    extra, side = (ours, "here") if len(ours) > len(theirs) else (theirs, "there")
    return f"Received: {extra[min(len(ours), len(theirs))]!r} only {side}"
