"""Steps of the `mlp` workload of docs/benchmarks.md under one algorithm: worker 0 prints their median.

Started once for each worker, with TF_CONFIG set, in the environment of `tfdp env`:

    python tests/benchmarks/hosts.py --algorithm flat --compression none --devices 2
"""

import argparse
import json
import time

import keras
import numpy as np
import tensorflow as tf

import tfdp

GLOBAL_BATCH, WARM_UP_STEPS = 128, 15


class StepTimes(keras.callbacks.Callback):
    """The seconds of every training step."""

    def __init__(self):
        super().__init__()
        self.seconds = []

    def on_train_batch_begin(self, batch, logs=None):
        self._begin = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        self.seconds.append(time.perf_counter() - self._begin)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--algorithm", default="auto")
    parser.add_argument("--compression", default="none")
    parser.add_argument("--devices", type=int, default=1, help="of each worker")
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(4)
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * options.devices)
    strategy = tfdp.MultiWorkerMirroredStrategy(algorithm=options.algorithm, compression=options.compression)
    keras.utils.set_random_seed(1)
    generator = np.random.default_rng(0)
    x = generator.standard_normal((GLOBAL_BATCH * options.steps, 512)).astype("float32")
    y = (x @ generator.standard_normal((512, 10))).argmax(1)
    with strategy.scope():
        hidden = [keras.layers.Dense(1024, activation="relu") for _ in range(4)]
        model = keras.Sequential([keras.Input((512,)), *hidden, keras.layers.Dense(10)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.05, momentum=0.9), loss)
    times = StepTimes()
    model.fit(x, y, batch_size=GLOBAL_BATCH, shuffle=False, verbose=0, callbacks=[times])
    if strategy.worker == 0:
        milliseconds = round(float(np.median(times.seconds[min(WARM_UP_STEPS, options.steps // 2) :])) * 1e3, 1)
        print(json.dumps({**vars(options), "replicas": strategy.num_replicas_in_sync, "step_ms": milliseconds}))


if __name__ == "__main__":
    main()
