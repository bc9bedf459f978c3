"""What all workers do around `fit`, `evaluate` and `predict` of Keras, so that they do it alike."""

import contextlib
import contextvars
import logging
import warnings
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import keras

from tfdp import tf_seam
from tfdp.progress import Progress, progress_of

# How long a worker that wishes to stop waits for all others to wish so after the same step.
_VOTE_SECONDS = 2.0
# How long a worker waits for the others where it has what it wanted.
_LEAVE_SECONDS = 10.0
# Which common warnings come from: one worker's are enough.
_LOGGERS = ("absl", "tensorflow", "tfdp")

_LOG = logging.getLogger("tfdp")

# Which call of Keras this is within: "fit", "evaluate", "predict", or "" for none.
_name: contextvars.ContextVar[str] = contextvars.ContextVar("name", default="")


@contextlib.contextmanager
def entered(strategy: Any, call: str, *, arguments: Any, is_keras_own: bool) -> Iterator[None]:
    """Lets all workers enter a call of Keras together, and those that are not the chief be silent in it.

    Args:
        strategy: of tfdp.
        call: "fit", "evaluate" or "predict".
        arguments: which must be the same on all workers, of JSON by name.
        is_keras_own: whether Keras makes the call within another one, as all workers then do.

    Raises:
        ValueError: another worker is about to do something else, or with other arguments.
        RuntimeError: a worker did not come in time.
    """
    is_silent = strategy.worker > 0 and not _name.get()
    token = _name.set(call)
    try:
        if not is_keras_own:
            _check_arguments(call, strategy.everyones(f"the start of `{call}`", arguments))
        with _silent() if is_silent else contextlib.nullcontext():
            yield
    finally:
        _name.reset(token)
    if not _name.get():
        leave(strategy)


def leave(strategy: Any) -> None:
    """Waits for all workers to come out of their last collective, so that one that ends now takes nothing along."""
    strategy.leave(_LEAVE_SECONDS)


def _check_arguments(call: str, everyones: Sequence[dict[str, Any]]) -> None:
    for argument in everyones[0]:
        values = [one[argument] for one in everyones]
        if any(value != values[0] for value in values):
            received = ", ".join(f"worker {rank}: {value}" for rank, value in enumerate(values))
            raise ValueError(f"`{argument}` of `{call}` must be the same on all workers. Received: {received}.")


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Drops the warnings of Keras and TensorFlow, which the chief shows."""

    def is_no_warning(record: logging.LogRecord) -> bool:
        return record.levelno > logging.WARNING

    loggers = [logging.getLogger(logger) for logger in _LOGGERS]
    for logger in loggers:
        logger.addFilter(is_no_warning)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"(keras|tensorflow)\b")
            yield
    finally:
        for logger in loggers:
            logger.removeFilter(is_no_warning)


class Together(keras.callbacks.Callback):
    """Keeps the workers of a training together: they begin with the same weights and stop after the same step.

    It is the last of the callbacks, so that it sees what the others have done.
    """

    def __init__(self, strategy: Any) -> None:
        """Keeps the workers of `strategy`, one of tfdp, together."""
        super().__init__()
        self._strategy = strategy
        self._wishes = self._has_stopped = self._has_begun = False
        self._num_executions = 0

    @property
    def has_stopped(self) -> bool:
        """Whether the training stops here; the same on all workers."""
        return self._has_stopped

    @property
    def wishes(self) -> bool:
        """Whether this worker wishes to stop."""
        return self._wishes or self._has_stopped

    def wish(self, wishes: bool) -> None:
        """Lets this worker wish to stop, or no more."""
        self._wishes = wishes
        self._progress.wish_to_stop(wishes)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if not self._has_begun:
            self._has_begun = True
            check_equal(self._strategy, _weights_of(self.model))

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._num_executions += 1
        if self._progress.anyone_wishes_to_stop:
            self._has_stopped = True
        elif self._wishes and not self._has_stopped:
            self._has_stopped = self._strategy.all_come(f"stop after {self._num_executions}", _VOTE_SECONDS)

    def on_train_end(self, logs: Any = None) -> None:
        try:
            check_equal(self._strategy, _weights_of(self.model))
        except ValueError as error:
            _LOG.error("tfdp: workers have come apart, since something was changed on one of them alone. %s", error)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if epoch + 1 == self.params["epochs"]:
            return  # it ends here anyway
        everyones = self._strategy.everyones("the end of an epoch", self._wishes, within_training=True)
        self._has_stopped = self._has_stopped or any(everyones)

    @property
    def _progress(self) -> Progress:
        return progress_of(self.model)


def _weights_of(model: keras.Model) -> list[tuple[str, Any]]:
    """Returns the variables of a model and its optimizer, with their paths."""
    optimizer = getattr(model, "optimizer", None)
    variables = [*model.weights, *(optimizer.variables if optimizer else ())]
    return [(variable.path, variable) for variable in variables]


def check_equal(strategy: Any, variables: Sequence[tuple[str, Any]]) -> None:
    """Raises a ValueError where workers hold other values; all workers must call it.

    Args:
        strategy: of tfdp.
        variables: distributed ones, with their paths.
    """
    digests = [_digest(variable) for _, variable in variables]  # not their paths: a worker may have made a model more
    own = zlib.crc32(repr(digests).encode())
    if len(set(strategy.everyones("the weights of all", own, within_training=True))) == 1:
        return
    everyones = strategy.everyones("the weights of each worker", digests)
    for rank, theirs in enumerate(everyones):
        for (path, _), ours, other in zip(variables, digests, theirs, strict=False):
            if ours != other:
                raise ValueError(
                    "All workers must begin with the same weights: load the same file on each of them, or restore the "
                    f"same backup. Received: other values of {path} on worker {strategy.worker} than on worker {rank}."
                )
    counts = ", ".join(f"{len(theirs)} on worker {rank}" for rank, theirs in enumerate(everyones))
    raise ValueError(f"All workers must train the same model. Received: different numbers of variables: {counts}.")


def _digest(variable: Any) -> int:
    return zlib.crc32(tf_seam.first_copy(variable).numpy().tobytes())
