"""8-bit floats are those of TensorFlow's own types."""

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from compressor_table import exact, kernels, reduce

from tfdp import compression

TYPES = {
    "e4m3": (compression.e4m3, ml_dtypes.float8_e4m3fn, 448.0),
    "e5m2": (compression.e5m2, ml_dtypes.float8_e5m2, 57344.0),
}
every_type = pytest.mark.parametrize(("build", "dtype", "largest"), TYPES.values(), ids=TYPES.keys())


def rounded(build, values, largest):
    """Returns what becomes of float32 `values`, each in a block where divided elements are the elements themselves."""
    codec = build()._codec
    with kernels(are_compiled=False):
        codes = codec.quantize(tf.constant(values, tf.float32), None)
        return exact(codec.dequantize(codes, tf.float32)), codes.numpy()


def all_numbers(dtype):
    numbers = np.arange(256, dtype=np.uint8).view(dtype).astype(np.float32)
    return np.sort(numbers[np.isfinite(numbers)])


@every_type
def test_every_number_of_the_type_stays_what_it_is_and_has_its_own_bits(build, dtype, largest):
    numbers = all_numbers(dtype)
    assert np.max(numbers) == largest
    values, codes = rounded(build, numbers, largest)
    np.testing.assert_array_equal(values, numbers)
    nonzero = numbers != 0
    np.testing.assert_array_equal(codes[nonzero], numbers[nonzero].astype(dtype).view(np.uint8))


@every_type
def test_values_between_are_rounded_as_the_type_rounds_them(build, dtype, largest):
    numbers = all_numbers(dtype).astype(np.float64)
    ties = ((numbers[1:] + numbers[:-1]) / 2).astype(np.float32)
    near = np.concatenate([np.nextafter(ties, np.float32(np.inf)), np.nextafter(ties, np.float32(-np.inf))])
    generator = np.random.default_rng(0)
    some = (generator.choice([-1, 1], 20_000) * largest * 2.0 ** generator.uniform(-36, 0, 20_000)).astype(np.float32)
    values = np.concatenate([ties, near, some])
    np.testing.assert_array_equal(rounded(build, values, largest)[0], values.astype(dtype).astype(np.float64))


@every_type
def test_a_block_is_scaled_to_the_largest_number_of_the_type(build, dtype, largest):
    gradient = np.random.default_rng(1).standard_normal(256).astype(np.float32)
    scale = np.max(np.abs(gradient)) / largest
    with kernels(are_compiled=False):
        sent = exact(reduce(build(), [[tf.constant(gradient)]])[0].sent[0])
    expected = np.asarray(gradient / scale, np.float32).astype(dtype).astype(np.float64) * scale
    # The scale is a millionth smaller than here, so that next to a tie an element may go the other way.
    assert np.mean(np.isclose(sent, expected, rtol=1e-5)) > 0.99
    np.testing.assert_allclose(sent, gradient, rtol=1 / 8, atol=scale * 2.0**-6)
