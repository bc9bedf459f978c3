"""Trains on TFRecord files, of which each worker reads its own.

python files.py --folder digits               with one worker
tfdp run -n 2 files.py --folder digits        with two workers on this machine, which end with the same weights
"""

import argparse
import hashlib
from pathlib import Path

import keras
import tensorflow as tf

import tfdp
from tfdp.cli import demo_data

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--folder", type=Path, required=True, help="where the files are, or are written")
options = parser.parse_args()

# The strategy comes first: it connects the workers, before TensorFlow starts.
strategy = tfdp.MultiWorkerMirroredStrategy()
keras.utils.set_random_seed(0)

FEATURES = {"image": tf.io.FixedLenFeature([8, 8, 1], tf.float32), "label": tf.io.FixedLenFeature([], tf.int64)}


def serialized(image, label):
    features = {
        "image": tf.train.Feature(float_list=tf.train.FloatList(value=image.ravel() / 16)),
        "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
    }
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


def parse(record):
    example = tf.io.parse_single_example(record, FEATURES)
    return example["image"], example["label"]


def write_files(folder, num_files=4):
    folder.mkdir(parents=True, exist_ok=True)
    digits = list(demo_data.digits().as_dataset(split="train", as_supervised=True).as_numpy_iterator())
    for index in range(num_files):
        path = folder / f"part-{index}.tfrecord"
        with tf.io.TFRecordWriter(str(path.with_suffix(".unfinished"))) as writer:
            for image, label in digits[index::num_files]:
                writer.write(serialized(image, label))
        path.with_suffix(".unfinished").rename(path)


is_first = strategy.cluster_resolver.task_id in (None, 0)
if is_first and not list(options.folder.glob("*.tfrecord")):
    write_files(options.folder)
strategy.everyones("the files are there", True)  # the others wait for the first

data = tfdp.data.shard(
    str(options.folder / "*.tfrecord"),
    strategy=strategy,
    global_batch_size=48,
    shuffle_buffer=1440,
    seed=0,
    map=parse,
    cache=True,
)
print(f"shared by {data.by}: {data.reason}")

with strategy.scope():
    model = keras.Sequential(
        [keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(64, "relu"), keras.layers.Dense(10)]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.005), loss, metrics=["accuracy"])

history = model.fit(data, epochs=options.epochs, verbose=0).history
weights = hashlib.sha256(b"".join(array.tobytes() for array in model.get_weights())).hexdigest()[:16]
print(f"training accuracy {history['accuracy'][-1]:.3f}, weights {weights}")  # every worker prints the same
