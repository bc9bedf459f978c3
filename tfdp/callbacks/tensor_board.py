"""The callback that writes for TensorBoard, by one worker or by each into a folder of its own."""

import importlib.util
import os
import tempfile
from typing import Any

import keras
import tensorflow as tf

from tfdp.callbacks.one_writer import OneWriter, swapped
from tfdp.callbacks.together import num_workers_of, worker_of


class TensorBoard(OneWriter, keras.callbacks.TensorBoard):
    """Writes what `keras.callbacks.TensorBoard` does, whose arguments it takes, on the chief alone.

    With `every_worker=True` each worker writes, into `log_dir/worker-<rank>`: TensorBoard shows them beside each other.
    Losses and metrics are those of all workers together, on each; times and profiles are a worker's own.

    Example:
        >>> callbacks = [TensorBoard("/tmp/logs", update_freq=100)]
    """

    every_worker = False
    _scratch: Any = None

    def __init__(self, *args: Any, every_worker: bool = False, **options: Any) -> None:
        """Writes into `log_dir`.

        Args:
            *args: of `keras.callbacks.TensorBoard`: `log_dir` first.
            every_worker: whether each worker writes, or the chief alone.
            **options: of `keras.callbacks.TensorBoard`.

        Raises:
            ImportError: the package tensorboard is not installed.
            TypeError: `every_worker` is neither True nor False.
        """
        if not isinstance(every_worker, bool):
            raise TypeError(f"`every_worker` must be True or False. Received: every_worker={every_worker!r}.")
        if importlib.util.find_spec("tensorboard") is None:
            raise ImportError(
                "tfdp.callbacks.TensorBoard needs the package tensorboard, which is not installed. Install it: "
                "pip install 'tfdp[tensorboard]'."
            )
        super().__init__(*args, **options)
        self.every_worker = every_worker

    def set_model(self, model: keras.Model) -> None:
        strategy = getattr(model, "distribute_strategy", None)
        folder = self.log_dir
        if self.every_worker and num_workers_of(strategy) > 1:
            folder = os.path.join(self.log_dir, f"worker-{worker_of(strategy)}")
        elif num_workers_of(strategy) > 1 and worker_of(strategy) != self.tfdp_writer:
            # For profiles and embeddings, which go with the other workers' but are not for this one to keep.
            self._scratch = tempfile.TemporaryDirectory(prefix="tfdp-tensorboard-")
            folder = self._scratch.name
        with swapped(self, "log_dir", folder):
            super().set_model(model)

    @property
    def summary(self) -> Any:
        """`tf.summary`, of which writers write nothing where this worker has nothing to write."""
        return _SilentSummary() if self._scratch is not None else super().summary


class _SilentSummary:
    """`tf.summary` without files."""

    def create_file_writer(self, *args: Any, **kwargs: Any) -> Any:
        return tf.summary.create_noop_writer()

    def __getattr__(self, name: str) -> Any:
        return getattr(tf.summary, name)
