"""The kernels of block codes, and the bytes that every compressor hands to its group."""

import numpy as np
import pytest
import tensorflow as tf
from compressor_table import (
    BLOCK_CODES,
    CODES,
    KINDS_OF_CODES,
    ROWS,
    Kind,
    exact,
    kernels,
    kinds,
    largest_of_blocks,
    random_gradients,
    random_run,
    run,
)

from tfdp import compression
from tfdp.collectives import loopback
from tfdp.traffic import bytes_on_the_wire

every_block_code = pytest.mark.parametrize("name", BLOCK_CODES)


@every_block_code
@pytest.mark.parametrize("size", [2, 3])
def test_compiled_kernels_do_what_the_same_operations_do_one_by_one(name, size):
    """Within a step: a compiler may order additions anew, and has random numbers of its own."""
    code = BLOCK_CODES[name]
    compiled = random_run(name, Kind(tf.float32, size, is_compiled=True))
    with kernels(are_compiled=False):
        plain = run(code.compressor, compiled.gradients)
    for gradients, *results in zip(compiled.gradients, compiled.results, plain.results, strict=True):
        for index in range(len(gradients[0])):
            one, other = (exact(of_members[0].total[index]) for of_members in results)
            largest = sum(largest_of_blocks(exact(of_member[index]), code.block_size) for of_member in gradients)
            if name == "sign" and size == 2:
                np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
            elif not code.is_unbiased:
                # A sum that lies between two numbers may go either way: by a step, of the second encoding too.
                step = code.step * (1 if size == 2 else 2 + code.step)
                assert np.all(np.abs(one - other) <= step * largest * (1 + 1e-5) + 1e-6)
                assert np.mean(np.isclose(one, other, rtol=1e-4, atol=1e-6)) > 0.9
            else:
                step = code.step * (1 if size == 2 else 2 + code.step)
                assert np.all(np.abs(one - other) <= step * largest * (1 + 1e-5))


@pytest.mark.parametrize("name", [name for name, code in BLOCK_CODES.items() if not code.is_unbiased])
def test_compiled_kernels_take_float64_too(name):
    gradients = [random_gradients(2, tf.float64)]
    compiled = run(BLOCK_CODES[name].compressor, gradients).results[0]
    with kernels(are_compiled=False):
        plain = run(BLOCK_CODES[name].compressor, gradients).results[0]
    for one, other in zip(compiled[0].total, plain[0].total, strict=True):
        np.testing.assert_allclose(exact(one), exact(other), rtol=1e-12, atol=1e-12)


@every_block_code
def test_kernels_are_compiled_once(name):
    compressor = BLOCK_CODES[name].compressor
    random_run(name, Kind(tf.float32, 2, is_compiled=True))
    traced = compressor._kernels.num_traces()
    run(compressor, [random_gradients(2, tf.float32, seed=9)] * 2)
    assert traced
    assert compressor._kernels.num_traces() == traced


# Bytes

SPEC = tf.TensorSpec([1024, 1024], tf.float32)


@pytest.mark.parametrize(
    ("compressor", "most"),
    [
        (compression.none(), 1.0),
        (compression.bf16(), 0.5),
        (compression.fp16(), 0.5),
        (compression.int8(), 0.27),
        (compression.qsgd(bits=8), 0.27),
        (compression.e4m3(), 0.27),
        (compression.e5m2(), 0.27),
        (compression.natural(), 0.27),
        (compression.int4(), 0.14),
        (compression.qsgd(), 0.14),
        (compression.tern_grad(), 0.07),
        (compression.sign(), 0.04),
        (compression.power_sgd(), 0.008),
        (compression.top_k(), 0.025),
        (compression.exact_top_k(), 0.025),
        (compression.random_k(), 0.0125),
    ],
    ids=repr,
)
def test_fewer_bytes_travel(compressor, most):
    plain = bytes_on_the_wire(compression.none(), SPEC, 2)
    for combined in (compressor, compression.error_feedback(compressor), compression.warm_up(compressor, steps=9)):
        assert bytes_on_the_wire(combined, SPEC, 2) <= most * plain


@pytest.mark.parametrize("name", [name for name, code in CODES.items() if not code.is_gathered])
def test_bytes_do_not_grow_with_the_number_of_members(name):
    compressor = CODES[name].compressor
    two, eight, many = (bytes_on_the_wire(compressor, SPEC, size) for size in (2, 8, 64))
    assert two < eight < 2.2 * two
    assert many < 2.2 * two


@pytest.mark.parametrize("name", [name for name, code in CODES.items() if code.is_gathered and code.has_static_size])
def test_bytes_of_what_is_gathered_grow_with_the_number_of_other_members(name):
    compressor = CODES[name].compressor
    two, *others = (bytes_on_the_wire(compressor, SPEC, size) for size in (2, 3, 64))
    assert others == [2 * two, 63 * two]


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if not row.code.has_static_size])
def test_bytes_that_follow_from_values_are_not_reported(name):
    assert bytes_on_the_wire(ROWS[name].compressor, SPEC, 2) is None


class Counting:
    """A member's communicator that counts what is handed to it, in the bytes that usual algorithms send."""

    can_branch, can_exchange = True, True

    def __init__(self, communicator):
        self.size, self.rank, self._communicator = communicator.size, communicator.rank, communicator
        self.sent_bytes = 0.0

    def sum(self, tensors, *, name):
        self.sent_bytes += sum(map(num_bytes, tensors)) * 2 * (self.size - 1) / self.size
        return self._communicator.sum(tensors, name=name)

    def gather(self, tensor, *, name):
        self.sent_bytes += num_bytes(tensor) * (self.size - 1)
        return self._communicator.gather(tensor, name=name)

    def exchange(self, tensor, *, name):
        self.sent_bytes += num_bytes(tensor) * (self.size - 1) / self.size
        return self._communicator.exchange(tensor, name=name)


def num_bytes(tensor):
    return len(tensor.numpy().tobytes())


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, row in ROWS.items()
        if row.code.has_static_size and (row.combinator == "{}" or row.code in [CODES[kind] for kind in KINDS_OF_CODES])
    ],
)
def test_as_many_bytes_travel_as_are_reported(name):
    spec = tf.TensorSpec((129, 65), tf.float32, name="kernel")
    compressor = ROWS[name].compressor.for_variable(spec)
    gradient = tf.constant(np.random.default_rng(0).standard_normal(spec.shape), spec.dtype)
    for size in (2, 3, 4) if ROWS[name].combinator == "{}" else (3,):
        with kernels(are_compiled=False):
            reported = bytes_on_the_wire(compressor, spec, size)

            def member(communicator):
                states, sent = [compressor.init(spec)], 0.0
                for _ in range(2):  # the second is not a step of warming up any more
                    group = Counting(communicator)
                    states = compressor.reduce([gradient], states, group, name="gradient").states
                    sent = group.sent_bytes
                return sent

            for sent in loopback(size, member):
                assert abs(sent - reported) <= 0.02 * reported + 1024, (size, sent, reported)


def test_kinds_of_every_row_reach_all_stages():
    for row in ROWS.values():
        stages = {3} if row.code.sends_a_part else {2, 3}
        assert stages <= {kind.size for kind in kinds(row)}


def test_what_is_no_code_is_refused():
    with pytest.raises(TypeError, match=r"`codec` must be a tfdp.compression.BlockCodec. Received: None."):
        compression.exchanged(None, name="none")
    with pytest.raises(TypeError, match=r"`codec` must be a tfdp.compression.Codec. Received: 3."):
        compression.summed(3, name="three")


def test_a_code_has_bits_that_fill_bytes_and_blocks_that_fill_words():
    codec = compression.BlockCodec(3, 256, None, None, None, False, 1)
    with pytest.raises(ValueError, match=r"have 1, 2, 4 or 8 bits\. Received: bits=3"):
        compression.exchanged(codec, name="of 3 bits")
    with pytest.raises(ValueError, match=r"multiple of 32\. Received: block_size=100"):
        compression.exchanged(codec._replace(bits=4, block_size=100), name="of 100")
