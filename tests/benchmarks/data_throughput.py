"""How fast sharded data are read, beside a pipeline written by hand for the same files: `make bench-data`.

Each of four workers reads its own TFRecord files: the time of an epoch of all, one after the other, by
`tfdp.data.shard` and by hand, in turn. Prints a table of medians and their ratio.
"""

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import numpy as np
import tensorflow as tf

from tfdp.data import Layout
from tfdp.data.sharding import ShardedDataset, shared

NUM_WORKERS, NUM_FILES, NUM_EXAMPLES, BATCH_SIZE, BUFFER, NUM_ROUNDS = 4, 16, 160_000, 256, 2_000, 5
FEATURES = {"x": tf.io.FixedLenFeature([256], tf.float32), "y": tf.io.FixedLenFeature([], tf.int64)}


def parse(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    example = tf.io.parse_single_example(record, FEATURES)
    return example["x"], example["y"]


def write(folder: Path) -> list[str]:
    rows = np.random.default_rng(0).standard_normal((256, 256)).astype("float32")
    paths = [str(folder / f"{index:02}.tfrecord") for index in range(NUM_FILES)]
    for path in paths:
        with tf.io.TFRecordWriter(path) as writer:
            for index in range(NUM_EXAMPLES // NUM_FILES):
                x = tf.train.Feature(float_list=tf.train.FloatList(value=rows[index % 256]))
                y = tf.train.Feature(int64_list=tf.train.Int64List(value=[index % 10]))
                features = tf.train.Features(feature={"x": x, "y": y})
                writer.write(tf.train.Example(features=features).SerializeToString())
    return paths


def by_hand(paths: list[str], worker: int, *, cache: bool) -> tf.data.Dataset:
    """Returns what TensorFlow's guides on performance advise: own files, interleaved, parsed, cached, shuffled."""
    files = tf.data.Dataset.from_tensor_slices(paths).shard(NUM_WORKERS, worker)
    records = files.interleave(tf.data.TFRecordDataset, cycle_length=16, num_parallel_calls=tf.data.AUTOTUNE)
    examples = records.map(parse, num_parallel_calls=tf.data.AUTOTUNE)
    examples = examples.cache() if cache else examples
    return examples.shuffle(BUFFER).batch(BATCH_SIZE // NUM_WORKERS).prefetch(tf.data.AUTOTUNE)


def sharded(paths: list[str], worker: int, *, cache: bool) -> ShardedDataset:
    layout = Layout(NUM_WORKERS, worker, 1)
    options = {"global_batch_size": BATCH_SIZE, "shuffle_buffer": BUFFER, "by": "files", "map": parse, "cache": cache}
    return ShardedDataset(*shared(paths, layout, **options)[:2], layout)


def seconds_of_an_epoch(datasets: list[tf.data.Dataset]) -> float:
    begin = time.perf_counter()
    count = sum(len(batch[1]) for dataset in datasets for batch in dataset)
    assert count == NUM_EXAMPLES
    return time.perf_counter() - begin


def main() -> int:
    print("| files | tfdp.data.shard, examples/s | by hand, examples/s | ratio |\n| --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        paths = write(Path(folder))
        for cache in (False, True):
            hand = [by_hand(paths, worker, cache=cache) for worker in range(NUM_WORKERS)]
            ours = [sharded(paths, worker, cache=cache) for worker in range(NUM_WORKERS)]
            times: tuple[list[float], list[float]] = ([], [])
            for epoch in range(1 + NUM_ROUNDS):
                times[0].append(seconds_of_an_epoch([one.local_batches(epoch) for one in ours]))
                times[1].append(seconds_of_an_epoch(hand))
            mine, theirs = (NUM_EXAMPLES / statistics.median(some[1:]) for some in times)  # the first fills caches
            print(f"| {'cached' if cache else 'read'} | {mine:,.0f} | {theirs:,.0f} | {mine / theirs:.2f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
