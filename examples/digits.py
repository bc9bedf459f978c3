"""Trains a small network on handwritten digits.

python digits.py               with one worker
tfdp run -n 2 digits.py        with two workers on this machine, which end with the same weights
"""

import argparse
import hashlib

import keras
import tensorflow as tf

import tfdp
from tfdp.cli import demo_data

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--compression", default="bf16", help="none, bf16 or fp16")
options = parser.parse_args()

# The strategy comes first: it connects the workers, before TensorFlow starts.
strategy = tfdp.MultiWorkerMirroredStrategy(compression=options.compression)
keras.utils.set_random_seed(0)


def shard_by_examples(dataset):
    # Each worker takes its part of every batch. So all must read the same data in the same order: seed the shuffling.
    sharding = tf.data.Options()
    sharding.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return dataset.with_options(sharding)


# scikit-learn's digits, kept as a tensorflow-datasets data set. With your own: `builder = tfds.builder("mnist")`.
builder = demo_data.digits()
train, test = (builder.as_dataset(split=split, as_supervised=True).cache() for split in ("train", "test"))
# A batch of 48 is for all workers together, and 1440 examples make 30 of them.
train = shard_by_examples(train.shuffle(1440, seed=0).batch(48, drop_remainder=True))
test = shard_by_examples(test.batch(48))

with strategy.scope():
    model = keras.Sequential(
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
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.002), loss, metrics=["accuracy"])

model.fit(train, epochs=options.epochs, shuffle=False)  # the data set shuffles itself
accuracy = model.evaluate(test, verbose=0, return_dict=True)["accuracy"]
weights = hashlib.sha256(b"".join(array.tobytes() for array in model.get_weights())).hexdigest()[:16]
print(f"test accuracy {accuracy:.3f}, weights {weights}")  # every worker prints the same
