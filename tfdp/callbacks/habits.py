"""Keras's own callbacks that write files, given to several workers by habit, get along with each other."""

import itertools
import logging
import os
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import keras

from tfdp.callbacks.backup_and_restore import BackupAndRestore
from tfdp.callbacks.csv_logger import CSVLogger
from tfdp.callbacks.model_checkpoint import ModelCheckpoint
from tfdp.callbacks.tensor_board import TensorBoard
from tfdp.callbacks.together import num_workers_of

_LOG = logging.getLogger("tfdp")


class _Kind(NamedTuple):
    """A callback of Keras that writes, the one of tfdp in its place, and the attribute that has its path."""

    of_keras: type
    of_tfdp: type
    path: str


_KINDS = {
    "ModelCheckpoint": _Kind(keras.callbacks.ModelCheckpoint, ModelCheckpoint, "filepath"),
    "BackupAndRestore": _Kind(keras.callbacks.BackupAndRestore, BackupAndRestore, "backup_dir"),
    "CSVLogger": _Kind(keras.callbacks.CSVLogger, CSVLogger, "filename"),
    "TensorBoard": _Kind(keras.callbacks.TensorBoard, TensorBoard, "log_dir"),
}


class _Mark(NamedTuple):
    """What workers compare of a callback: equal ones on several workers belong together.

    Attributes:
        kind: its name in `_KINDS`.
        path: where it writes; None for one of tfdp, of which the chief's counts.
        earlier: how many of the same there are before it.
    """

    kind: str
    path: str | None
    earlier: int


def adapted(callbacks: Any, strategy: Any) -> Any:
    """Returns the callbacks that `fit` should use for those that a user gave; all workers must call it.

    Keras's `ModelCheckpoint`, `BackupAndRestore`, `CSVLogger` and `TensorBoard`, and classes that are made from them,
    become those of tfdp where several workers would write to one path. They stay the same objects. Where each worker
    has a path of its own they are left as they are, and so is a `keras.callbacks.CallbackList`.

    Args:
        callbacks: a flat list, or a `keras.callbacks.CallbackList`.
        strategy: that the model trains under.

    Raises:
        ValueError: workers have such different callbacks that they could not go on together.
    """
    if num_workers_of(strategy) == 1:
        return callbacks
    own = {} if isinstance(callbacks, keras.callbacks.CallbackList) else _marked(callbacks or ())
    everyones = strategy.everyones("the callbacks of `fit` that write files", list(own))
    workers: dict[_Mark, list[int]] = {}
    for rank, marks in enumerate(everyones):
        for mark in marks:
            workers.setdefault(_Mark(*mark), []).append(rank)
    _check_backups(workers, len(everyones))
    become = []
    for mark, callback in own.items():
        kind, ranks = _KINDS[mark.kind], workers[mark]
        of_kind = [others for other, others in workers.items() if other.kind == mark.kind]
        is_of_one_worker = all(others == ranks for others in of_kind) and len(ranks) == 1
        if not isinstance(callback, kind.of_tfdp):
            # One of Keras on one worker alone is fine, but for variables that it cannot read without the others.
            if len(ranks) == 1 and not (is_of_one_worker and mark.kind == "ModelCheckpoint"):
                continue
            _become(callback, kind)
            callback.tfdp_writer = ranks[0]
            if len(ranks) > 1:
                become.append(f"{mark.kind} of {mark.path} (worker {ranks[0]})")
        callback.tfdp_is_everywhere = len(ranks) == len(everyones)
    if become:
        _LOG.info(
            "tfdp: callbacks of Keras that workers share are those of tfdp.callbacks now, of which one worker alone "
            "writes: %s.",
            ", ".join(become),
        )
    return callbacks


def _marked(callbacks: Sequence[Any]) -> dict[_Mark, Any]:
    counts: Counter[tuple[str, str | None]] = Counter()
    marked = {}
    for callback, (name, kind) in itertools.product(callbacks, _KINDS.items()):
        if isinstance(callback, kind.of_keras):
            path = None if isinstance(callback, kind.of_tfdp) else _absolute(getattr(callback, kind.path))
            marked[_Mark(name, path, counts[name, path])] = callback
            counts[name, path] += 1
    return marked


def _absolute(path: Any) -> str:
    text = os.fspath(path)
    return text if "://" in text else os.path.abspath(text)


def _check_backups(workers: dict[_Mark, list[int]], num_workers: int) -> None:
    """Raises a ValueError where only some workers would restore a backup, or some of them write to one folder."""
    for mark, ranks in workers.items():
        if mark.kind != "BackupAndRestore" or len(ranks) == num_workers:
            continue
        with_any = {rank for other, others in workers.items() if other.kind == mark.kind for rank in others}
        if mark.path is None or len(ranks) > 1 or len(with_any) < num_workers:
            raise ValueError(
                "BackupAndRestore must be given to all workers, with the same folder (or those of Keras, each with one "
                f"of its own): those that have none would go on from another model. Received: worker(s) {ranks} of "
                f"{num_workers} have one for {mark.path or 'their backup'}."
            )


def _become(callback: Any, kind: _Kind) -> None:
    """Makes a callback of Keras one of tfdp; a class made from it gets tfdp's between itself and Keras's."""
    own = type(callback)
    if own is kind.of_keras:
        made = kind.of_tfdp
    else:
        made = type(own.__name__, (own, kind.of_tfdp), {"__module__": own.__module__, "__doc__": own.__doc__})
    try:
        callback.__class__ = made
    except TypeError as error:
        raise ValueError(
            f"{own.__name__} would write to one path on several workers: give it to one worker, or each worker a path "
            f"of its own. It cannot be made one of tfdp.callbacks: {error}"
        ) from error
