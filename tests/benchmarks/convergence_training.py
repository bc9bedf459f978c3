"""A process of the convergence benchmark: trains one workload under one compressor from several seeds.

All seeds share a graph. Between them every variable that it reads, those of compression included, goes back to the
value that it had before the first step, and the weights become those of the next seed.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import convergence_workloads as workloads_lib
import keras
import numpy as np
import tensorflow as tf
from convergence_workloads import Data, Workload

import tfdp
from tfdp import compression
from tfdp.traffic import bytes_on_the_wire

NUM_HOSTS = 2
TIMED_STEPS, TIMED_ROUNDS = 10, 9


def loss_function(targets: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """Returns the mean cross-entropy in nats."""
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits))


def training_graph(strategy: Any, model: Any, optimizer: Any, data: Data) -> Any:
    """Returns a tf.function that makes a step for each row of its argument: int32 examples [step, replica, row]."""
    inputs, targets = tf.constant(data.inputs), tf.constant(data.targets)

    def step_of_replica(rows: tf.Tensor) -> None:
        context = tf.distribute.get_replica_context()
        rows = rows[context.replica_id_in_sync_group]
        with tf.GradientTape() as tape:
            loss = loss_function(tf.gather(targets, rows), model(tf.gather(inputs, rows), training=True))
            loss /= context.num_replicas_in_sync  # the sum over replicas is the mean over the batch
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)

    @tf.function(reduce_retracing=True)
    def steps(batches: tf.Tensor) -> None:
        for rows in batches:
            strategy.run(step_of_replica, args=(rows,))

    return steps


def quality_graph(workload: Workload, model: Any, data: Data) -> Callable[[], tf.Tensor]:
    """Returns a function that measures the model on the test examples."""
    inputs, targets = tf.constant(data.test_inputs), tf.constant(data.test_targets)

    @tf.function
    def quality() -> tf.Tensor:
        logits = model(inputs, training=False)
        if workload.quality == "loss":
            return loss_function(targets, logits)
        is_right = tf.equal(tf.argmax(logits, axis=-1, output_type=tf.int32), targets)
        return 100 * tf.reduce_mean(tf.cast(is_right, tf.float32))

    return quality


def build(strategy: Any, workload: Workload, name: str, num_steps: int) -> tuple[Any, Any]:
    """Returns a model and its optimizer, all of their variables made."""
    with strategy.scope():
        model = workload.model()
        optimizer = workload.optimizer(name, num_steps)
        optimizer.build(model.trainable_variables)
    return model, optimizer


def first_weights(workload: Workload, seed: int) -> list[np.ndarray]:
    keras.utils.set_random_seed(seed)
    return workload.model().get_weights()


def train(
    workload: Workload, name: str, num_steps: int, seeds: list[int]
) -> Iterator[tuple[int, list[int], list[float], int]]:
    """Trains from each seed; yields it, the steps at which quality was measured, the quality, the bytes of a step."""
    strategy = tfdp.MirroredStrategy(compression=name)
    data = workload.data()
    model, optimizer = build(strategy, workload, name, num_steps)
    steps, quality = training_graph(strategy, model, optimizer, data), quality_graph(workload, model, data)
    chunk = num_steps // workload.num_evaluations
    num_replicas = workload.num_replicas
    like_batches = tf.TensorSpec([chunk, num_replicas, workload.batch_size // num_replicas], tf.int32)
    steps_in_graph = steps.get_concrete_function(like_batches)
    first_values = [(variable, variable.numpy()) for variable in steps_in_graph.variables]
    wire_bytes = bytes_of_a_step(name, model)
    for seed in seeds:
        for variable, value in first_values:
            variable.assign(value)
        model.set_weights(first_weights(workload, seed))
        batches = workloads_lib.batches(workload, len(data.inputs), num_steps, num_replicas, seed)
        at, qualities = list(range(chunk, num_steps + 1, chunk)), []
        for end in at:
            steps_in_graph(tf.constant(batches[end - chunk : end]))
            qualities.append(float(quality()))
        yield seed, at, qualities, wire_bytes


def bytes_of_a_step(name: str, model: Any) -> int:
    """Returns the bytes that one of two hosts sends to reduce one gradient of each variable."""
    compressor = compression.get(name)
    specs = [tf.TensorSpec(variable.shape, variable.dtype, variable.path) for variable in model.trainable_variables]
    return sum(bytes_on_the_wire(compressor.for_variable(spec), spec, NUM_HOSTS) for spec in specs)


def arithmetic_seconds(workload: Workload) -> float:
    """Returns the median seconds of a step of one of two hosts, on one device: half of a batch, nothing sent."""
    strategy, data = tf.distribute.get_strategy(), workload.data()
    model, optimizer = build(strategy, workload, "none", workload.num_steps)
    steps = training_graph(strategy, model, optimizer, data)
    host_batch = workload._replace(batch_size=workload.batch_size // NUM_HOSTS)
    batches = tf.constant(workloads_lib.batches(host_batch, len(data.inputs), TIMED_STEPS, 1, seed=0))
    times = []
    for _ in range(1 + TIMED_ROUNDS):
        begin = time.perf_counter()
        steps(batches)
        times.append((time.perf_counter() - begin) / TIMED_STEPS)
    return statistics.median(times[1:])  # the first one is tracing


def main() -> None:
    """Does what its only argument asks for, and adds a line for each result to a file.

    The argument is JSON: {"workload", "name", "seeds", "num_steps", "settings", "cache"}; without seeds it is the
    arithmetic that is measured. Each line repeats "workload", "name" and "settings".
    """
    job = json.loads(sys.argv[1])
    workload = workloads_lib.WORKLOADS[job["workload"]]
    same = {key: job[key] for key in ("workload", "name", "settings")}
    if not job["seeds"]:
        append(job["cache"], {**same, "arithmetic_seconds": arithmetic_seconds(workload)})
        return
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * workload.num_replicas)
    for seed, steps, quality, wire_bytes in train(workload, job["name"], job["num_steps"], job["seeds"]):
        append(job["cache"], {**same, "seed": seed, "steps": steps, "quality": quality, "wire_bytes": wire_bytes})


def append(path: str, record: dict[str, Any]) -> None:
    with Path(path).open("a") as file:
        file.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
