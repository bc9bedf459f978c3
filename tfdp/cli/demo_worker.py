"""What each worker of `tfdp demo` runs: the training of `examples/digits.py`, and a report of what it measured."""

import argparse
import hashlib
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf
import tensorflow_datasets as tfds

import tfdp
from tfdp.cli import demo_data
from tfdp.cli.demo_report import WorkerReport, write_report

# TensorFlow traces, and fills its caches, in the first steps.
NUM_UNTIMED_STEPS = 10


def make_model() -> keras.Model:
    """Returns the network, not compiled: images uint8 [batch, 8, 8, 1] to logits float32 [batch, 10]."""
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Rescaling(1 / 16),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.Conv2D(64, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ]
    )


def compile_model(model: keras.Model) -> None:
    """Sets the optimizer, the loss and the metric of the training."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.002), loss, metrics=["accuracy"])


def global_batch_size(num_workers: int) -> int:
    """Returns the examples of one step over all workers: 48, or a little less where 48 does not divide by them."""
    return max(48 // num_workers, 1) * num_workers


def training_batches(builder: tfds.core.DatasetBuilder, batch_size: int) -> tf.data.Dataset:
    """Returns batches for all workers together, shuffled anew in each epoch, the same on every worker."""
    data = builder.as_dataset(split="train", as_supervised=True).cache()
    data = data.shuffle(demo_data.NUM_TRAINING_EXAMPLES, seed=0).batch(batch_size, drop_remainder=True)
    return data.with_options(_shard_by_examples())


def test_batches(builder: tfds.core.DatasetBuilder, batch_size: int) -> tf.data.Dataset:
    """Returns the test set, in order, the same on every worker."""
    data = builder.as_dataset(split="test", as_supervised=True).cache().batch(batch_size)
    return data.with_options(_shard_by_examples())


def _shard_by_examples() -> tf.data.Options:
    # All workers read the same file: each takes its part of every batch.
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return options


class StepTimer(keras.callbacks.Callback):
    """Keeps the seconds of every training step, reading its batch included."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._begin = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seconds.append(time.perf_counter() - self._begin)


def digest(weights: Sequence[Any]) -> str:
    """Returns a hash of arrays, equal for equal bits."""
    state = hashlib.sha256()
    for array in weights:
        state.update(f"{array.dtype} {array.shape} ".encode() + array.tobytes())
    return state.hexdigest()


def train(compression: str, epochs: int) -> WorkerReport:
    """Trains and evaluates together with the other workers of TF_CONFIG, and returns what this one saw."""
    strategy = tfdp.MultiWorkerMirroredStrategy(compression=compression)
    keras.utils.set_random_seed(0)
    builder = demo_data.digits()
    batch_size = global_batch_size(strategy.num_replicas_in_sync)
    with strategy.scope():
        model = make_model()
        compile_model(model)
    timer = StepTimer()
    # `shuffle=False` as the data set shuffles itself: Keras warns otherwise.
    model.fit(training_batches(builder, batch_size), epochs=epochs, callbacks=[timer], shuffle=False)
    accuracy = model.evaluate(test_batches(builder, batch_size), verbose=0, return_dict=True)["accuracy"]
    num_test_examples = builder.info.splits["test"].num_examples
    report = strategy.compression_report()
    seconds = timer.seconds[NUM_UNTIMED_STEPS:] or timer.seconds
    return WorkerReport(
        rank=strategy.cluster_resolver.task_id,
        num_replicas=strategy.num_replicas_in_sync,
        num_correct=round(accuracy * num_test_examples),
        num_test_examples=num_test_examples,
        weights_digest=digest(model.get_weights()),
        num_timed_steps=len(seconds),
        step_seconds=statistics.median(seconds),
        gradient_bytes=report.uncompressed_wire_bytes,
        sent_bytes=report.wire_bytes,
    )


def main() -> None:
    """Trains as the arguments say, and leaves the report in the folder that they name."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--compression", required=True)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--report-folder", type=Path, required=True)
    options = parser.parse_args()
    write_report(options.report_folder, train(options.compression, options.epochs))


if __name__ == "__main__":
    main()
