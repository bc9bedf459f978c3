"""Prints how long compressors compute on one core, as ratios to a copy of the same bytes: `make bench-kernels`.

Encoding is what stands between a gradient and its message, error feedback included; decoding is what stands between
the messages of two replicas and their sum. Everything is measured in turn, three times in a row; a figure is a
median.
"""

import os
import statistics
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

from tfdp import compression
from tfdp.compression import entries as entries_lib
from tfdp.traffic import CountingGroup

MEGABYTES = 16
NUM_ROUNDS, NUM_IN_A_ROW = 15, 3
SHAPE = (2048, MEGABYTES * 2**20 // 4 // 2048)


def seconds(function) -> float:
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


class TwoAlike(CountingGroup):
    """A group of two that send the same."""

    def __init__(self) -> None:
        super().__init__(2)

    def sum(self, tensors, *, name):
        return [2 * tensor for tensor in tensors]


def operations() -> dict:
    """Returns what to measure, by name: functions without arguments."""
    generator = np.random.default_rng(0)
    array = generator.standard_normal(SHAPE).astype("float32")
    gradient = tf.constant(array)
    residual = tf.constant(0.1 * generator.standard_normal(SHAPE).astype("float32"))
    group = TwoAlike()
    measured = {"copy": array.copy}
    measured["bf16: encode"] = lambda: tf.cast(gradient, tf.bfloat16)
    half = tf.cast(gradient, tf.bfloat16)
    measured["bf16: decode"] = lambda: tf.cast(half, tf.float32)
    for name in ("int8", "int4", "sign", "e4m3", "e5m2", "qsgd", "tern_grad", "natural"):
        compressor = getattr(compression, name)()
        state = compressor.init(tf.TensorSpec(SHAPE, tf.float32))
        is_by_chance = state != ()
        residuals = () if is_by_chance else [residual]  # those by chance go without feedback

        def encode(compressor=compressor, residuals=residuals, state=state):
            num_blocks = array.size // compressor._codec.block_size
            random = compressor._random([state], group, "benchmark", 1, num_blocks)
            return compressor._encode([gradient], residuals, random, multiple=1)

        encoded, _ = encode()
        both = tf.nest.map_structure(lambda part: tf.concat([part, part], axis=0), encoded)
        measured[f"{name}: {'encode' if is_by_chance else 'encode with error feedback'}"] = encode
        measured[f"{name}: decode two and add"] = lambda c=compressor, b=both: c._decode(
            b, 2, tf.float32, [gradient.shape]
        )
    for rank in (1, 4, 16):
        compressor = compression.power_sgd(rank)
        states = tf.nest.map_structure(tf.constant, [compressor.init(tf.TensorSpec(SHAPE, tf.float32))])

        @tf.function(autograph=False)
        def both(gradient, residual, states, compressor=compressor):
            result, unsent = compressor.reduce_with_residuals([gradient], [residual], states, group, name="benchmark")
            return result.total, result.states, result.finite, unsent

        name = f"power_sgd of rank {rank}: encode with error feedback, decode"
        measured[name] = lambda both=both, states=states: both(gradient, residual, states)
    for name in ("top_k", "exact_top_k"):
        measured |= operations_on_entries(name, getattr(compression, name)(), gradient, residual)
    return measured


def operations_on_entries(name, compressor, gradient, residual) -> dict:
    """Returns what to measure of a compressor that sends elements with their positions, in graphs as in training."""

    @tf.function(autograph=False)
    def encode(gradient, residual):
        own, wholes, counts = compressor._encode([gradient], [residual])
        return own, entries_lib.cleared(compressor._kernels, wholes, own, counts)

    @tf.function(autograph=False)
    def decode(own):
        group, shapes = CountingGroup(2), [gradient.shape]
        return entries_lib.deliver(compressor._kernels, own, tf.float32, tf.float32, shapes, group, name=name).total

    own, _ = encode(gradient, residual)
    return {
        f"{name}: encode with error feedback": lambda: encode(gradient, residual),
        f"{name}: decode two and add": lambda: decode(own),
    }


def main() -> None:
    tf.config.threading.set_intra_op_parallelism_threads(1)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    measured = operations()
    times: dict = {name: [] for name in measured}
    for _ in range(NUM_ROUNDS):
        for name, function in measured.items():
            times[name] += [seconds(function) for _ in range(NUM_IN_A_ROW)]
    medians = {name: statistics.median(values) for name, values in times.items()}
    print(f"| {MEGABYTES} MB of float32, one core | ms | of a copy |\n|---|---|---|")
    for name, value in medians.items():
        print(f"| {name} | {1e3 * value:.2f} | {value / medians['copy']:.1f} |")


if __name__ == "__main__":
    main()
