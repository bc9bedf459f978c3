"""What the compressors that send shorter floating-point numbers, or all of them, add to the laws."""

import numpy as np
import pytest
import tensorflow as tf
from compressor_table import CODES, ROUNDOFF, SIZES, SMALLEST, bits, exact, random_gradients, reduce, totals
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdp import compression
from tfdp.collectives import loopback

every_size = pytest.mark.parametrize("size", SIZES)
fixed_examples = settings(derandomize=True, database=None, deadline=None, max_examples=15)


def test_none_sends_and_sums_exactly():
    gradients = random_gradients(2, tf.float32)
    for rank, result in enumerate(reduce(compression.none(), gradients)):
        assert bits(result.sent) == bits(gradients[rank])
        for index, total in enumerate(result.total):
            assert bits(total) == bits(gradients[0][index] + gradients[1][index])


@pytest.mark.parametrize("name", ["bf16", "fp16"])
@pytest.mark.parametrize("dtype", [tf.float32, tf.float64], ids=lambda dtype: dtype.name)
@every_size
def test_what_is_sent_is_the_gradient_rounded_once(name, dtype, size):
    code = CODES[name]
    gradients = random_gradients(size, dtype)
    for rank, result in enumerate(reduce(code.compressor, gradients)):
        for gradient, sent in zip(gradients[rank], result.sent, strict=True):
            bound = (ROUNDOFF[code.travels] * 1.01 * np.abs(exact(gradient))) + size * SMALLEST[code.travels]
            assert np.all(np.abs(exact(sent) - exact(gradient)) <= bound)


@pytest.mark.parametrize("name", ["bf16", "fp16"])
@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16], ids=lambda dtype: dtype.name)
def test_a_gradient_that_is_as_small_already_is_sent_as_it_is(name, dtype):
    gradients = random_gradients(2, dtype)
    for rank, result in enumerate(reduce(CODES[name].compressor, gradients)):
        assert bits(result.sent) == bits(gradients[rank])


@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_half_of_the_bytes_travel(name):
    def sent_dtypes(communicator):
        seen = []

        class Watched:
            size, rank = communicator.size, communicator.rank

            def sum(self, tensors, *, name):
                seen.extend(tensor.dtype for tensor in tensors)
                return communicator.sum(tensors, name=name)

        compression.get(name).reduce([tf.ones([3])], [()], Watched(), name="x")
        return seen

    assert loopback(2, sent_dtypes) == [[CODES[name].travels]] * 2


@pytest.mark.parametrize(
    ("gradients", "total"),
    [
        ([40000.0, 40000.0], 80000.0),
        ([65400.0, 65400.0], 130800.0),
        ([-60000.0, -60000.0, -60000.0], -180000.0),
        ([60000.0, -60000.0], 0.0),
        ([1e-3] * 4, 4e-3),
    ],
)
def test_fp16_sums_may_be_larger_than_the_largest_float16(gradients, total):
    for result in totals(compression.fp16(), [[gradient] for gradient in gradients]):
        np.testing.assert_allclose(result, [total], rtol=1e-3)


@pytest.mark.parametrize("gradient", [65504.0, 70000.0, 1e30, 3e38, -70000.0, -3e38])
@every_size
def test_fp16_clamps_a_gradient_to_the_largest_float16(gradient, size):
    for result in totals(compression.fp16(), [[gradient], *[[0.0]] * (size - 1)]):
        # A little less, so that the rounding of partial sums has room.
        np.testing.assert_allclose(result, [np.copysign(65504.0, gradient)], rtol=(size + 1) * 2.0**-11)


@pytest.mark.parametrize("size", [8, 64])
def test_fp16_sums_stay_finite_over_many_members(size):
    for result in totals(compression.fp16(), np.full((size, 3), 65504.0)):
        assert np.all(np.isfinite(result))
        np.testing.assert_allclose(result, np.full(3, 65504.0 * size), rtol=size * 2.0**-10)


@fixed_examples
@given(values=st.lists(st.floats(-65000, 65000, width=32), min_size=1, max_size=6))
def test_fp16_keeps_every_gradient_within_its_range(values):
    size = len(values)
    bound = (size * 2.0**-11 * 1.1) * np.sum(np.abs(values)) + size * size * 2.0**-24
    for total in totals(compression.fp16(), [[value] for value in values]):
        assert abs(total[0] - np.sum(values, dtype=np.float64)) <= bound


def test_bf16_keeps_the_range_of_float32():
    for total in totals(compression.bf16(), [[1e37, 1e-37], [2e37, 2e-37]]):
        np.testing.assert_allclose(total, [3e37, 3e-37], rtol=2.0**-7)
