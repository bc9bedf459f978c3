"""The callback that counts what a training does: examples of all replicas, steps and seconds."""

import logging
import time
from typing import Any

import keras

from tfdp.progress import Progress, progress_of

_LOG = logging.getLogger("tfdp")


class ThroughputMonitor(keras.callbacks.Callback):
    """Counts the examples that all replicas of all workers have trained on, and how long that took.

    Examples are counted where the steps are made, so that a last batch counts as what it is. The seconds are those from
    the beginning of an epoch to its last step, without what callbacks and validation do after it. The first step, in
    which TensorFlow builds its graph, is told apart. All workers hold the same counts; the chief logs them.

    Example:
        >>> import numpy as np, keras, tfdp
        >>> with tfdp.MirroredStrategy().scope():
        ...     model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        ...     model.compile("sgd", "mse")
        >>> monitor = tfdp.callbacks.ThroughputMonitor()
        >>> data = np.zeros((10, 2), "float32"), np.zeros((10, 1), "float32")
        >>> _ = model.fit(*data, batch_size=4, epochs=3, verbose=0, callbacks=[monitor])
        >>> monitor.examples, monitor.steps
        (30, 9)

    Attributes:
        examples: of all replicas, since training began.
        steps: that were made of them.
        seconds: that the steps took, the first one included.
        first_step_seconds: that the first execution took (`steps_per_execution` steps); None before it has ended.
    """

    seconds: float
    first_step_seconds: float | None

    def __init__(self) -> None:
        super().__init__()
        self._clear()

    @property
    def examples_per_second(self) -> float:
        """Examples of all replicas a second, the first step included; 0 before there were any."""
        return self.examples / self.seconds if self.seconds else 0.0

    @property
    def steady_examples_per_second(self) -> float:
        """The same without the first execution; 0 where there was no other."""
        seconds = self.seconds - (self.first_step_seconds or 0.0)
        examples = self.examples - self._first_examples
        return examples / seconds if examples and seconds > 0 else 0.0

    def on_train_begin(self, logs: Any = None) -> None:
        self._clear()
        strategy = self.model.distribute_strategy
        if not hasattr(strategy, "num_workers"):
            raise ValueError(
                "ThroughputMonitor counts under the strategies of tfdp: make the model within the scope of "
                f"tfdp.MirroredStrategy or tfdp.MultiWorkerMirroredStrategy. Received: {type(strategy).__name__}."
            )
        self._before = self._progress.num_steps, self._progress.num_examples

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._since = time.perf_counter()
        self._at_epoch_begin = self.seconds

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seconds = self._at_epoch_begin + time.perf_counter() - self._since
        if self.first_step_seconds is None:
            self.first_step_seconds = self.seconds
            self._first_examples = self._progress.num_examples - self._before[1]

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.steps = self._progress.num_steps - self._before[0]
        self.examples = self._progress.num_examples - self._before[1]
        if self.model.distribute_strategy.worker == 0:
            _LOG.info(
                "tfdp: %d examples in %d steps, %.1f examples/s; the first step took %.1f s, the others made %.1f "
                "examples/s",
                self.examples,
                self.steps,
                self.examples_per_second,
                self.first_step_seconds or 0.0,
                self.steady_examples_per_second,
            )

    def _clear(self) -> None:
        self.examples = self.steps = 0
        self.seconds = self._at_epoch_begin = self._since = 0.0
        self.first_step_seconds = None
        self._first_examples = 0
        self._before = 0, 0

    @property
    def _progress(self) -> Progress:
        return progress_of(self.model)
