"""Laws that every compressor keeps, and what each adds of its own."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdp import compression
from tfdp.collectives import loopback


class Row(NamedTuple):
    """A compressor, and what its laws depend on.

    Attributes:
        build: returns the compressor.
        travels: the dtype of what travels, in which partial sums are rounded; None where gradients travel as they are.
            A gradient whose dtype is as small already travels as it is.
        clamps: whether a finite gradient of any size has a finite sum; otherwise those within the range of `travels`.
    """

    build: Callable[[], compression.Compressor]
    travels: tf.DType | None
    clamps: bool = True


# A new compressor joins all laws by one line.
COMPRESSORS = {
    "none": Row(compression.none, travels=None),
    "bf16": Row(compression.bf16, travels=tf.bfloat16, clamps=False),
    "fp16": Row(compression.fp16, travels=tf.float16),
}

DTYPES = [tf.float16, tf.bfloat16, tf.float32, tf.float64]
SIZES = [1, 2, 3, 4]
SHAPES = [(), (0,), (1,), (7,), (2, 3), (0, 4), (3, 1, 5), (129,)]

# Half a unit in the last place, and the smallest positive number.
ROUNDOFF = {tf.float16: 2.0**-11, tf.bfloat16: 2.0**-8, tf.float32: 2.0**-24, tf.float64: 2.0**-53}
SMALLEST = {tf.float16: 2.0**-24, tf.bfloat16: 2.0**-133, tf.float32: 2.0**-149, tf.float64: 2.0**-1074}

every_compressor = pytest.mark.parametrize("row", COMPRESSORS.values(), ids=COMPRESSORS.keys())
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
every_size = pytest.mark.parametrize("size", SIZES)
fixed_examples = settings(derandomize=True, database=None, deadline=None, max_examples=40)


def reduce(compressor, gradients_of_members, steps=1):
    """Returns what each member gets for its gradients in the last of `steps` reductions."""

    def member(communicator):
        gradients = gradients_of_members[communicator.rank]
        states = [compressor.init(tf.TensorSpec(gradient.shape, gradient.dtype)) for gradient in gradients]
        for step in range(steps):
            result = compressor.reduce(gradients, states, communicator, name=f"step {step}")
            states = result.states
        return result

    return loopback(len(gradients_of_members), member)


def random_gradients(size, dtype, shapes=SHAPES, scale=1.0, seed=0):
    """Returns for each member a tensor of each shape, with magnitudes over several powers of two."""
    generator = np.random.default_rng(seed)

    def tensor(shape):
        magnitude = 2.0 ** generator.uniform(-6, 3, shape)
        return tf.cast(tf.constant(scale * magnitude * generator.standard_normal(shape)), dtype)

    return [[tensor(shape) for shape in shapes] for _ in range(size)]


def exact(tensor):
    return tf.cast(tensor, tf.float64).numpy()


def bits(tensor):
    return tf.convert_to_tensor(tensor).numpy().tobytes()


def totals(compressor, values_of_members, dtype=tf.float32):
    """Returns the total that each member gets where each contributes a vector."""
    results = reduce(compressor, [[tf.constant(values, dtype)] for values in values_of_members])
    return [exact(result.total[0]) for result in results]


# Laws


@every_compressor
@every_dtype
@every_size
def test_the_total_is_the_sum_of_what_the_members_sent(row, dtype, size):
    results = reduce(row.build(), random_gradients(size, dtype))
    travelled = dtype if row.travels is None or dtype.size <= row.travels.size else row.travels
    for index in range(len(SHAPES)):
        sent = [exact(result.sent[index]) for result in results]
        magnitude = np.sum(np.abs(sent), axis=0)
        # Each of R - 1 additions rounds once where it travels; encoding and decoding round in the gradient's own dtype.
        bound = ((size - 1) * ROUNDOFF[travelled] + 4 * ROUNDOFF[dtype] * (size > 1)) * magnitude * 1.01
        bound += size * size * SMALLEST[travelled] * (size > 1)
        error = np.abs(exact(results[0].total[index]) - np.sum(sent, axis=0))
        np.testing.assert_array_less(error, np.nextafter(bound, np.inf), err_msg=f"shape {SHAPES[index]}")


@every_compressor
@every_dtype
@every_size
def test_every_member_gets_the_same_bits(row, dtype, size):
    first, *others = reduce(row.build(), random_gradients(size, dtype))
    for other in others:
        assert [bits(total) for total in other.total] == [bits(total) for total in first.total]


@every_compressor
@every_dtype
@every_size
def test_shapes_and_dtypes_come_back(row, dtype, size):
    for result in reduce(row.build(), random_gradients(size, dtype)):
        assert [tuple(total.shape) for total in result.total] == SHAPES
        assert [tuple(sent.shape) for sent in result.sent] == SHAPES
        assert {tensor.dtype for tensor in [*result.total, *result.sent]} == {dtype}


@every_compressor
@every_dtype
def test_a_single_gradient_of_any_shape_can_travel_alone(row, dtype):
    for shape in SHAPES:
        for result in reduce(row.build(), random_gradients(2, dtype, [shape])):
            assert (tuple(result.total[0].shape), result.total[0].dtype) == (shape, dtype)


@every_compressor
def test_states_keep_their_number_and_their_form(row):
    compressor = row.build()
    for result in reduce(compressor, random_gradients(2, tf.float32), steps=3):
        assert len(result.states) == len(SHAPES)
        for shape, state in zip(SHAPES, result.states, strict=True):
            first = compressor.init(tf.TensorSpec(shape, tf.float32))
            tf.nest.assert_same_structure(first, state)
            for before, after in zip(tf.nest.flatten(first), tf.nest.flatten(state), strict=True):
                before, after = tf.convert_to_tensor(before), tf.convert_to_tensor(after)
                assert (before.shape, before.dtype) == (after.shape, after.dtype)


@every_compressor
def test_the_same_inputs_give_the_same_bits_again(row):
    gradients = random_gradients(3, tf.float32)
    once, again = (reduce(row.build(), gradients, steps=2) for _ in range(2))
    for before, after in zip(once, again, strict=True):
        assert [bits(x) for x in tf.nest.flatten(before)] == [bits(x) for x in tf.nest.flatten(after)]


@every_compressor
@every_dtype
def test_zeros_stay_zeros(row, dtype):
    results = reduce(row.build(), [[tf.zeros(shape, dtype) for shape in SHAPES] for _ in range(3)])
    for result in results:
        assert not any(np.any(exact(tensor)) for tensor in [*result.total, *result.sent])


@every_compressor
@every_dtype
@every_size
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf], ids=["nan", "inf", "-inf"])
def test_nan_and_infinity_reach_every_member(row, dtype, size, value):
    for length in (1, 17):
        for position in {0, length - 1}:
            values = np.ones((size, length))
            values[size - 1, position] = value
            for total in totals(row.build(), values, dtype):
                np.testing.assert_array_equal(total[position], value)
                assert np.all(np.isfinite(np.delete(total, position)))


@every_compressor
def test_infinities_of_both_signs_give_nan(row):
    for total in totals(row.build(), [[np.inf, 1.0], [-np.inf, 1.0]]):
        np.testing.assert_array_equal(total, [np.nan, 2.0])


def largest_sum(row, size, dtype):
    """Returns the largest sum of magnitudes that must stay finite."""
    largest = float(dtype.max) * (1 - 1e-6)
    if row.clamps:
        return largest
    # Each addition may round up.
    return min(largest, float(row.travels.max) / (1 + ROUNDOFF[row.travels]) ** size)


def check_that_finite_sums_stay_finite(row, values, dtype):
    values = np.asarray(values, np.float64)
    expected = np.sum(np.abs(values), axis=0) <= largest_sum(row, len(values), dtype)
    for total in totals(row.build(), values, dtype):
        assert np.all(np.isfinite(total[expected])), (values, total)


@every_compressor
@pytest.mark.parametrize("dtype", [tf.float32, tf.float64], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("size", [1, 2, 3, 7, 33])
def test_the_largest_gradients_have_a_finite_sum(row, dtype, size):
    share = largest_sum(row, size, dtype) / size * (1 - 1e-6)
    for value in (share, -share, 65504.0, 65519.0, 65520.0, 1e30):
        check_that_finite_sums_stay_finite(row, np.full((size, 5), value), dtype)


large_floats = st.floats(-(2.0**122), 2.0**122, width=32) | st.floats(-3e5, 3e5, width=32)


@every_compressor
@fixed_examples
@given(
    values=st.integers(1, 5).flatmap(
        lambda size: st.lists(st.tuples(large_floats, large_floats, large_floats), min_size=size, max_size=size)
    )
)
def test_finite_gradients_have_a_finite_sum(row, values):
    check_that_finite_sums_stay_finite(row, values, tf.float32)


# What each adds of its own


def test_none_sends_and_sums_exactly():
    gradients = random_gradients(2, tf.float32)
    for rank, result in enumerate(reduce(compression.none(), gradients)):
        assert [bits(sent) for sent in result.sent] == [bits(gradient) for gradient in gradients[rank]]
        for index, total in enumerate(result.total):
            assert bits(total) == bits(gradients[0][index] + gradients[1][index])


@pytest.mark.parametrize("name", ["bf16", "fp16"])
@pytest.mark.parametrize("dtype", [tf.float32, tf.float64], ids=lambda dtype: dtype.name)
@every_size
def test_what_is_sent_is_the_gradient_rounded_once(name, dtype, size):
    row = COMPRESSORS[name]
    gradients = random_gradients(size, dtype)
    for rank, result in enumerate(reduce(row.build(), gradients)):
        for gradient, sent in zip(gradients[rank], result.sent, strict=True):
            bound = (ROUNDOFF[row.travels] * 1.01 * np.abs(exact(gradient))) + size * SMALLEST[row.travels]
            assert np.all(np.abs(exact(sent) - exact(gradient)) <= bound)


@pytest.mark.parametrize("name", ["bf16", "fp16"])
@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16], ids=lambda dtype: dtype.name)
def test_a_gradient_that_is_as_small_already_is_sent_as_it_is(name, dtype):
    gradients = random_gradients(2, dtype)
    for rank, result in enumerate(reduce(COMPRESSORS[name].build(), gradients)):
        assert [bits(sent) for sent in result.sent] == [bits(gradient) for gradient in gradients[rank]]


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

    assert loopback(2, sent_dtypes) == [[COMPRESSORS[name].travels]] * 2


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


# Names


@pytest.mark.parametrize("name", COMPRESSORS)
def test_a_compressor_is_found_by_its_name_and_shows_itself(name):
    assert repr(compression.get(name)) == f"{name}()" == repr(COMPRESSORS[name].build())


def test_no_compression_is_none():
    assert repr(compression.get(None)) == "none()"


def test_a_compressor_is_passed_through():
    compressor = compression.fp16()
    assert compression.get(compressor) is compressor


@pytest.mark.parametrize("identifier", ["int4", "", "FP16", "bf16()"])
def test_an_unknown_name_is_refused_with_the_names_that_there_are(identifier):
    with pytest.raises(ValueError) as raised:
        compression.get(identifier)
    for name in COMPRESSORS:
        assert repr(name) in str(raised.value)
    assert f"Received: {identifier!r}" in str(raised.value)


@pytest.mark.parametrize("identifier", [16, True, ["bf16"], compression.bf16])
def test_what_is_neither_name_nor_compressor_is_refused(identifier):
    with pytest.raises(TypeError) as raised:
        compression.get(identifier)
    for name in COMPRESSORS:
        assert repr(name) in str(raised.value)
    assert "tfdp.compression.Compressor" in str(raised.value)
    assert f"of type {type(identifier).__name__}" in str(raised.value)
