"""Trains a small network on handwritten digits.

python digits.py               with one worker
tfdp run -n 2 digits.py        with two workers on this machine, which end with the same weights
"""

import argparse
import hashlib

import keras

import tfdp
from tfdp.cli import demo_data

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--compression", default="bf16", help="none, bf16 or fp16")
options = parser.parse_args()

# The strategy comes first: it connects the workers, before TensorFlow starts.
strategy = tfdp.MultiWorkerMirroredStrategy(compression=options.compression)
keras.utils.set_random_seed(0)

# scikit-learn's digits, kept as a tensorflow-datasets data set. With another: "mnist", say, in place of the builder.
builder = demo_data.digits()
# Each worker reads its part. A batch of 48 is for all workers together.
train = tfdp.data.shard(
    builder, split="train", strategy=strategy, global_batch_size=48, shuffle_buffer=1440, seed=0, cache=True
)
test = tfdp.data.shard(builder, split="test", strategy=strategy, global_batch_size=48)

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

model.fit(train, epochs=options.epochs)
accuracy = model.evaluate(test, verbose=0, return_dict=True)["accuracy"]
weights = hashlib.sha256(b"".join(array.tobytes() for array in model.get_weights())).hexdigest()[:16]
print(f"test accuracy {accuracy:.3f}, weights {weights}")  # every worker prints the same
