"""What block codes make of an element, and on average."""

import numpy as np
import pytest
import tensorflow as tf
from compressor_table import BLOCK_CODES, ROWS, exact, kernels, kinds, largest_of_blocks, random_run, reduce, run

from tfdp import compression
from tfdp.compression import quantizing

UNBIASED = {name: code for name, code in BLOCK_CODES.items() if code.is_unbiased}

every_block_code = pytest.mark.parametrize("name", BLOCK_CODES)
every_unbiased_code = pytest.mark.parametrize("name", UNBIASED)


@every_block_code
def test_an_element_is_off_by_a_share_of_the_largest_in_its_block(name):
    code = BLOCK_CODES[name]
    for kind in kinds(ROWS[name]):
        steps = random_run(name, kind)
        for gradients, results in zip(steps.gradients, steps.results, strict=True):
            for member, result in enumerate(results):
                if kind.size > 2:
                    continue  # the member's part has been encoded twice
                for gradient, sent in zip(gradients[member], result.sent, strict=True):
                    largest = largest_of_blocks(exact(gradient), code.block_size)
                    error = np.abs(exact(gradient) - exact(sent))
                    assert np.all(error <= (code.error + rounding(kind.dtype)) * largest), kind


@every_block_code
def test_a_sum_that_is_encoded_again_is_off_by_as_much_once_more(name):
    code = BLOCK_CODES[name]
    for kind in kinds(ROWS[name]):
        steps = random_run(name, kind)
        for gradients, results in zip(steps.gradients, steps.results, strict=True):
            for index, total in enumerate(results[0].total):
                parts = [exact(of_member[index]) for of_member in gradients]
                largest = sum(largest_of_blocks(part, code.block_size) for part in parts)
                # A code that rounds up has doubled the largest at most before it meets the second encoding.
                factor = 1 if kind.size <= 2 else 2 + code.error
                error = np.abs(exact(total) - np.sum(parts, axis=0))
                assert np.all(error <= (factor * code.error + 4 * rounding(kind.dtype)) * largest), kind


def rounding(dtype):
    return {tf.float16: 1e-3, tf.bfloat16: 8e-3}.get(dtype, 1e-5)


@every_block_code
def test_the_largest_of_a_block_scales_its_errors_and_no_other_block(name):
    """One huge element spoils its own block, and leaves the blocks beside it as good as they were."""
    code = BLOCK_CODES[name]
    gradient = np.random.default_rng(0).uniform(0.5, 1.0, 3 * code.block_size)
    spoiled = gradient.copy()
    spoiled[code.block_size] = 1e6
    with kernels(are_compiled=False):
        sent = exact(reduce(code.compressor, [[tf.constant(spoiled, tf.float32)]])[0].sent[0])
    beside = np.r_[0 : code.block_size, 2 * code.block_size : 3 * code.block_size]
    assert np.all(np.abs(sent - gradient)[beside] <= code.error * 1.001)


@pytest.mark.parametrize(("name", "levels"), [("int8", 127), ("int4", 7), ("qsgd of 8 bits", 127), ("qsgd", 7)])
def test_levels_are_as_many_as_the_bits_allow_and_include_zero(name, levels):
    with kernels(are_compiled=False):
        sent = exact(reduce(BLOCK_CODES[name].compressor, [[tf.linspace(-1.0, 1.0, 8 * levels + 1)[:256]]])[0].sent[0])
    numbers = sent * levels / np.max(np.abs(sent)) if name in ("int8", "int4") else sent * levels
    np.testing.assert_allclose(numbers, np.round(numbers), atol=2e-3 * levels / 127)
    assert np.max(np.abs(numbers)) <= levels * 1.001


def test_int8_reaches_every_one_of_its_levels():
    sent = sent_alone("int8", np.arange(-127, 128) / 127)
    np.testing.assert_allclose(sent, np.arange(-127, 128) / 127, atol=2e-6)
    assert len(np.unique(sent)) == 255


def test_tern_grad_sends_three_values_a_block():
    gradient = np.random.default_rng(0).standard_normal(1024)
    sent = sent_alone("tern_grad", gradient)
    largest = np.max(np.abs(gradient))
    assert len(np.unique(sent)) == 3
    np.testing.assert_allclose(np.unique(sent), [-largest, 0, largest], rtol=2e-6)
    assert np.all(sent * gradient >= 0)


def test_natural_sends_one_of_the_two_next_powers_of_two():
    gradient = np.random.default_rng(0).standard_normal(1024) * 2.0 ** np.random.default_rng(1).uniform(-60, 60, 1024)
    sent = sent_alone("natural", gradient)
    below = 2.0 ** np.floor(np.log2(np.abs(gradient.astype(np.float32))))
    assert np.all(np.sign(sent) == np.sign(gradient))
    assert np.all((np.abs(sent) == below) | (np.abs(sent) == 2 * below))


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64], ids=lambda dtype: dtype.name)
def test_natural_leaves_powers_of_two_as_they_are(dtype):
    gradient = np.resize([1.0, -0.5, 0.25, -(2.0**-20), 0.0, 1.0, 2.0**-100], 1 << 16)
    np.testing.assert_array_equal(sent_alone("natural", gradient, dtype), gradient)


def test_natural_rounds_up_by_less_than_two_to_the_23_even_with_the_largest_random_number():
    for dtype in (tf.float32, tf.float64):
        largest = np.nextafter(dtype.as_numpy_dtype(1), dtype.as_numpy_dtype(0))
        divided = tf.constant([1.0, -1.0, 0.5, 0.0], dtype)
        codes = quantizing._to_powers(divided, tf.fill([4], tf.constant(largest, dtype)))
        np.testing.assert_array_equal(exact(quantizing._from_powers(codes, dtype)), [1.0, -1.0, 0.5, 0.0])


def test_sign_sends_the_mean_magnitude_of_a_block_with_the_sign_of_each_element():
    gradient = np.random.default_rng(0).standard_normal(1000)
    sent = sent_alone("sign", gradient)
    np.testing.assert_allclose(sent, np.sign(gradient) * np.mean(np.abs(gradient)), rtol=1e-5)
    assert len(np.unique(sent)) == 2


def sent_alone(name, gradient, dtype=tf.float32):
    with kernels(are_compiled=False):
        return exact(reduce(BLOCK_CODES[name].compressor, [[tf.constant(gradient, dtype)]])[0].sent[0])


# On average. One gradient is repeated over many blocks and steps: each repetition has random numbers of its own.

STEPS, REPETITIONS = 4, 500


def repeated_totals(name, size):
    """Returns gradients by member [1024], and what arrived of their sum [STEPS * REPETITIONS, 1024]."""
    generator = np.random.default_rng(5)
    gradients = [generator.standard_normal(1024) * 2.0 ** generator.uniform(-8, 0, 1024) for _ in range(size)]
    gradients = [gradient.astype(np.float32) for gradient in gradients]
    tensors = [[tf.constant(np.tile(gradient, REPETITIONS))] for gradient in gradients]
    steps = run(UNBIASED[name].compressor, [tensors] * STEPS)
    arrived = [exact(results[0].total[0]).reshape([REPETITIONS, 1024]) for results in steps.results]
    return np.asarray(gradients, np.float64), np.concatenate(arrived)


@every_unbiased_code
@pytest.mark.parametrize("size", [2, 3])
def test_what_arrives_is_right_on_average(name, size):
    """Each of 1024 elements within 5.5 standard errors: a right compressor fails for 4 of 100,000 seeds."""
    gradients, arrived = repeated_totals(name, size)
    expected = np.sum(gradients, axis=0)
    standard_error = np.std(arrived, axis=0, ddof=1) / np.sqrt(len(arrived))
    # The standard deviation itself is estimated: of rare events too low. One more event is allowed for.
    one_event = BLOCK_CODES[name].step * np.max(np.abs(arrived)) / len(arrived)
    off = np.abs(np.mean(arrived, axis=0) - expected)
    assert np.all(off <= 5.5 * standard_error + 3 * one_event), np.max(off / (standard_error + 1e-30))
    # All elements together show a common bias that is too small to be seen in one.
    signed = np.mean((np.mean(arrived, axis=0) - expected) * np.sign(expected))
    assert abs(signed) <= 5.5 * np.sqrt(np.sum(standard_error**2)) / 1024 + 1e-6
    assert np.any(np.std(arrived, axis=0))


@every_unbiased_code
def test_steps_and_members_and_gradients_have_random_numbers_of_their_own(name):
    """Errors of equal gradients do not go together: 10 correlations within 5.5 standard errors, 4 failures in 10^7."""
    code = UNBIASED[name]
    gradient = tf.constant(np.random.default_rng(1).standard_normal(1024 * REPETITIONS), tf.float32)
    steps = run(code.compressor, [[[gradient]] * 2] * 2)
    sent = {(step, member): steps.results[step][member].sent[0] for step in range(2) for member in range(2)}
    states = [code.compressor.init(tf.TensorSpec(gradient.shape, gradient.dtype))]
    sent["another name"] = code.compressor.reduce([gradient], states, Alone(), name="other gradients").sent[0]
    errors = {key: exact(tensor) - exact(gradient) for key, tensor in sent.items()}
    keys = list(errors)
    for index, one in enumerate(keys):
        for another in keys[index + 1 :]:
            correlation = np.corrcoef(errors[one], errors[another])[0, 1]
            assert abs(correlation) <= 5.5 / np.sqrt(len(errors[one])), (one, another, correlation)


class Alone:
    """The group of one member."""

    size, rank, can_branch, can_exchange = 1, 0, True, True

    def gather(self, tensor, *, name):
        return tensor


# Arguments

BUILDERS = [
    compression.int8,
    compression.int4,
    compression.qsgd,
    compression.tern_grad,
    compression.natural,
    compression.sign,
    compression.e4m3,
    compression.e5m2,
]
every_builder = pytest.mark.parametrize("build", BUILDERS, ids=lambda build: build.__name__)


@every_builder
@pytest.mark.parametrize("block_size", [1.5, 256.0, True, "256", None])
def test_a_block_size_is_an_integer(build, block_size):
    with pytest.raises(TypeError) as raised:
        build(block_size=block_size)
    assert str(raised.value) == f"`block_size` must be an integer. Received: block_size={block_size!r}."


@every_builder
@pytest.mark.parametrize("block_size", [0, 33, -32, 16])
def test_a_block_size_is_a_multiple_of_32(build, block_size):
    with pytest.raises(ValueError) as raised:
        build(block_size=block_size)
    assert str(raised.value) == f"`block_size` must be a positive multiple of 32. Received: block_size={block_size}."


@every_builder
@pytest.mark.parametrize("number", [int, np.int64])
def test_a_block_size_is_shown_and_kept_to(build, number):
    compressor = build(block_size=number(32))
    assert repr(compressor).endswith("block_size=32)")
    with kernels(are_compiled=False):
        gradient = tf.concat([tf.fill([32], 1.0), tf.fill([7], 1e6)], axis=0)
        for result in reduce(compressor, [[gradient]] * 3):
            np.testing.assert_allclose(exact(result.total[0])[:32], 3.0, rtol=1 / 3)


@pytest.mark.parametrize("bits", [3, 2, 0, 16, 4.0, True, "4", None])
def test_qsgd_has_4_or_8_bits(bits):
    with pytest.raises(ValueError) as raised:
        compression.qsgd(bits=bits)
    assert str(raised.value) == f"`bits` must be 4 or 8. Received: bits={bits!r}."
