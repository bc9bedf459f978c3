"""Trains on two hosts with two workers each, all played by this machine: workers of a host add up first.

tfdp run -n 4 examples/hosts.py
"""

import argparse

import keras
import numpy as np

import tfdp

# Workers 0 and 1 stand on host a, 2 and 3 on host b. Leave this out on real hosts: the workers' addresses tell it.
HOSTS = '{"hosts": [{"name": "a", "workers": [0, 1]}, {"name": "b", "workers": [2, 3]}]}'

parser = argparse.ArgumentParser()
parser.add_argument("--algorithm", default="auto", help="auto, flat, hierarchical or tree")
parser.add_argument("--compression", default="int8", help="of what travels between the hosts")
options = parser.parse_args()

strategy = tfdp.MultiWorkerMirroredStrategy(
    topology=HOSTS, algorithm=options.algorithm, compression=options.compression
)
keras.utils.set_random_seed(0)
if strategy.worker == 0:
    print(strategy.topology)

x = np.random.default_rng(0).standard_normal((4096, 64)).astype("float32")
y = (x @ np.random.default_rng(1).standard_normal((64, 10))).argmax(1)
with strategy.scope():
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(256, activation="relu"), keras.layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.003), loss, metrics=["accuracy"])
history = model.fit(x, y, batch_size=128, epochs=5)

if strategy.worker == 0:
    print(strategy.compression_report())
print(f"accuracy {history.history['accuracy'][-1]:.3f}")  # every worker prints the same
