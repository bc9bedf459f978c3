"""Full precision in the first steps."""

import numpy as np
import pytest
import tensorflow as tf
from compressor_table import BLOCK_CODES, CODES, KINDS_OF_CODES, bits, exact, random_gradients, reduce, residuals, run

from tfdp import compression
from tfdp.compression import error_feedback, none, warm_up

every_code = pytest.mark.parametrize("code", CODES.values(), ids=CODES.keys())
every_kind_of_code = pytest.mark.parametrize("code", [CODES[name] for name in KINDS_OF_CODES], ids=KINDS_OF_CODES)


class Unbranching:
    """A group whose collectives may not stand in a tf.cond; counts its calls."""

    can_branch, can_exchange = False, True

    def __init__(self, communicator):
        self.size, self.rank, self._communicator = communicator.size, communicator.rank, communicator
        self.sum, self.gather, self.exchange = communicator.sum, communicator.gather, communicator.exchange
        self.gather_rows = communicator.gather_rows


def gradients_of(num_steps, size=2):
    return [random_gradients(size, tf.float32, seed=step) for step in range(num_steps)]


@every_code
@pytest.mark.parametrize("size", [3])
def test_the_first_steps_are_exact_and_the_later_ones_are_those_of_the_compressor(code, size):
    gradients = gradients_of(4, size)
    warmed = run(warm_up(code.compressor, steps=2), gradients)
    for step in (0, 1):
        for result, plain in zip(warmed.results[step], reduce(none(), gradients[step]), strict=True):
            assert bits(result.total) == bits(plain.total)
    later = run(code.compressor, gradients[2:])
    for step in (0, 1):
        for result, compressed in zip(warmed.results[2 + step], later.results[step], strict=True):
            assert bits(result.total) == bits(compressed.total)


@every_kind_of_code
def test_error_feedback_around_and_within_is_exact_in_the_first_steps_and_starts_with_no_residual(code):
    gradients = gradients_of(4)
    later = run(error_feedback(code.compressor), gradients[2:])
    for compressor in (
        error_feedback(warm_up(code.compressor, steps=2)),
        warm_up(error_feedback(code.compressor), steps=2),
    ):
        warmed = run(compressor, gradients)
        for step in (0, 1):
            for result, plain in zip(warmed.results[step], reduce(none(), gradients[step]), strict=True):
                assert bits(result.total) == bits(plain.total)
                assert not any(np.any(exact(residual)) for residual in residuals(result.states))
        for step in (0, 1):
            for result, compressed in zip(warmed.results[2 + step], later.results[step], strict=True):
                for one, other in zip(result.total, compressed.total, strict=True):
                    np.testing.assert_allclose(exact(one), exact(other), rtol=1e-6, atol=1e-6)


@every_kind_of_code
def test_a_group_that_cannot_branch_gets_the_same(code):
    for compressor in (
        warm_up(code.compressor, steps=2),
        error_feedback(warm_up(code.compressor, steps=2)),
        warm_up(error_feedback(code.compressor), steps=2),
    ):
        gradients = gradients_of(4)
        branching, unbranching = run(compressor, gradients), run(compressor, gradients, adapt=Unbranching)
        assert bits(unbranching.results) == bits(branching.results)


@pytest.mark.parametrize("name", ["int8", "qsgd"])
def test_a_residual_that_is_there_already_is_sent_in_full(name):
    """Warming up can begin with a residual, restored from a run with another number of members."""
    compressor = error_feedback(warm_up(BLOCK_CODES[name].compressor, steps=2))
    gradient = tf.constant([1.0, 2.0, 3.0, 4.0, 5.0])
    state = compressor.init(tf.TensorSpec(gradient.shape, gradient.dtype)) | {"residual": np.full(5, 0.5, np.float32)}
    result = compressor.reduce([gradient], [state], Alone(), name="gradient")
    np.testing.assert_array_equal(exact(result.total[0]), exact(gradient) + 0.5)
    assert not np.any(exact(residuals(result.states)[0]))


class Alone:
    """The group of one member."""

    size, rank, can_branch, can_exchange = 1, 0, True, True

    def sum(self, tensors, *, name):
        return list(tensors)


def test_steps_are_counted_by_variable_and_no_further_than_needed():
    gradients = [[[tf.ones([3])]]] * 5
    counts = [int(results[0].states[0]["steps"]) for results in run(warm_up(none(), steps=3), gradients).results]
    assert counts == [1, 2, 3, 3, 3]


def test_a_bucket_is_compressed_when_all_of_its_variables_are_warm():
    compressor = warm_up(compression.fp16(), steps=2)
    states = [{"steps": np.int64(2), "inner": ()}, {"steps": np.int64(1), "inner": ()}]
    tiny = [tf.constant([1e-9])] * 2
    first = compressor.reduce(tiny, states, Alone(), name="gradients")
    second = compressor.reduce(tiny, first.states, Alone(), name="gradients")
    np.testing.assert_array_equal([exact(total) for total in first.total], [exact(tensor) for tensor in tiny])
    np.testing.assert_array_equal([exact(total) for total in second.total], [[0.0], [0.0]])


def test_reports_are_about_what_comes_after():
    inner = BLOCK_CODES["int8"].compressor
    assert warm_up(inner, steps=3).settled() is inner
    assert repr(error_feedback(warm_up(inner, steps=3)).settled()) == "error_feedback(int8(block_size=256))"
    assert repr(warm_up(error_feedback(inner), steps=3).settled()) == "error_feedback(int8(block_size=256))"


def test_a_restored_group_of_another_size_goes_on_counting():
    compressor = warm_up(error_feedback(BLOCK_CODES["int8"].compressor), steps=9)
    states = [
        {"steps": np.int64(4), "inner": {"residual": np.full(2, rank + 1, np.float32), "inner": ()}}
        for rank in range(3)
    ]
    merged = compressor.merge(states, 2)
    assert merged["steps"] == 4
    np.testing.assert_array_equal(merged["inner"]["residual"], [3.0, 3.0])


# Arguments


def test_no_steps_leave_the_compressor_as_it_is():
    inner = compression.fp16()
    assert warm_up(inner, steps=0) is inner


@pytest.mark.parametrize("steps", [1.5, True, "3", None])
def test_steps_are_an_integer(steps):
    with pytest.raises(TypeError) as raised:
        warm_up(compression.int8(), steps=steps)
    assert str(raised.value) == f"`steps` must be an integer. Received: steps={steps!r}."


@pytest.mark.parametrize("steps", [-1, 2**31])
def test_steps_are_at_least_zero_and_can_be_counted(steps):
    with pytest.raises(ValueError) as raised:
        warm_up(compression.int8(), steps=steps)
    assert str(raised.value) == f"`steps` must be at least 0 and less than 2**31. Received: steps={steps}."


@pytest.mark.parametrize("thing", ["int8", None, compression.int8])
def test_only_a_compressor_can_be_warmed_up(thing):
    with pytest.raises(TypeError) as raised:
        warm_up(thing, steps=3)
    assert str(raised.value) == f"`compressor` must be a tfdp.compression.Compressor. Received: {thing!r}."


def test_it_shows_its_steps():
    assert repr(warm_up(compression.fp16(), steps=3)) == "warm_up(fp16(), steps=3)"
