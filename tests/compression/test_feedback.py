"""What error feedback keeps, and that nothing is lost."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from compressor_table import CODES, COMBINATORS, ROUNDOFF, ROWS, SHAPES, bits, exact, kinds, random_run, residuals, run

from tfdp import compression

FED_BACK = [name for name in ROWS if "error_feedback" in name]
every_fed_back = pytest.mark.parametrize("name", FED_BACK)


def own_dtype(dtype):
    """Returns the dtype of the residuals of gradients of `dtype`."""
    return tf.float64 if dtype == tf.float64 else tf.float32


@pytest.mark.parametrize("name", [name for name in FED_BACK if not name.startswith("warm_up")])
def test_a_residual_is_what_was_not_sent_of_the_gradient_and_the_residual_before(name):
    decay = 0.5 if "decay=0.5" in name else 1.0
    for kind in kinds(ROWS[name]):
        steps = random_run(name, kind)
        for step, results in enumerate(steps.results):
            for member, result in enumerate(results):
                before, after = residuals(steps.states(step, member)), residuals(result.states)
                for index, gradient in enumerate(steps.gradients[step][member]):
                    whole = exact(gradient) + decay * exact(before[index])
                    error = np.abs(whole - exact(result.sent[index]) - exact(after[index]))
                    peak = np.max(np.abs([whole, exact(result.sent[index]), exact(after[index])]))
                    # What is sent is told in the gradient's dtype: as a difference, where it was encoded twice.
                    bound = (4 * ROUNDOFF[kind.dtype] + 8 * kind.size * ROUNDOFF[own_dtype(kind.dtype)]) * peak
                    assert np.all(error <= bound), (kind, step, np.max(error) / bound)


@pytest.mark.parametrize("name", [name for name in FED_BACK if "decay" not in name])
def test_all_totals_and_residuals_add_up_to_the_gradients(name):
    for kind in kinds(ROWS[name]):
        steps = random_run(name, kind)
        last = steps.results[-1]
        for index, shape in enumerate(SHAPES):
            given = [exact(gradients[index]) for of_step in steps.gradients for gradients in of_step]
            arrived = [exact(results[0].total[index]) for results in steps.results]
            kept = [exact(residuals(result.states)[index]) for result in last]
            error = np.abs(np.sum(arrived, axis=0) + np.sum(kept, axis=0) - np.sum(given, axis=0))
            # Totals are rounded to the gradients' dtype. In 16 bits, so are the partial sums of what travels.
            peak = sum(np.max(np.abs(part)) for part in [*given, *arrived, *kept])
            travels = ROWS[name].code.travels
            roundoff = max(ROUNDOFF[kind.dtype], ROUNDOFF[travels] if travels else 0.0)
            assert np.all(error <= 4 * roundoff * peak), (kind, shape, np.max(error) / (4 * roundoff * peak))


@every_fed_back
def test_residuals_are_kept_in_single_precision_and_more(name):
    for kind in kinds(ROWS[name]):
        steps = random_run(name, kind)
        for states in [steps.first_states, steps.results[-1][0].states]:
            for residual, shape in zip(residuals(states), SHAPES, strict=True):
                assert (tuple(residual.shape), tf.as_dtype(residual.dtype)) == (shape, own_dtype(kind.dtype))


@pytest.mark.parametrize("size", [2, 3])
def test_two_variables_of_one_shape_keep_their_own_residuals(size):
    compressor = compression.error_feedback(CODES["sign"].compressor)
    gradients = [[tf.constant([1.0, 0.9, 0.8]), tf.constant([-2.0, -1.8, -1.6])] for _ in range(size)]
    steps = run(compressor, [gradients] * 9)
    for index, gradient in enumerate(gradients[0]):
        arrived = sum(exact(results[0].total[index]) for results in steps.results)
        kept = sum(exact(residuals(result.states)[index]) for result in steps.results[-1])
        np.testing.assert_allclose(arrived + kept, 9 * size * exact(gradient), rtol=1e-5)
        assert np.any(kept)


def test_every_gradient_has_the_residual_that_it_has_alone():
    compressor = compression.error_feedback(CODES["int8"].compressor)
    first, second = (tf.constant(np.random.default_rng(seed).standard_normal(3), tf.float32) for seed in (0, 1))
    together = run(compressor, [[[first, second]] * 2] * 4).results[-1][0]
    for index, gradient in enumerate([first, second]):
        alone = run(compressor, [[[gradient]] * 2] * 4).results[-1][0]
        np.testing.assert_allclose(
            exact(residuals(together.states)[index]), exact(residuals(alone.states)[0]), atol=1e-6
        )


def test_what_is_too_small_for_fp16_arrives_with_error_feedback_alone():
    gradients = [[[tf.fill([3], 1e-8)]] * 2] * 100

    def mean_arrived(compressor):
        return sum(exact(results[0].total[0]) for results in run(compressor, gradients).results) / 2

    assert np.all(np.abs(mean_arrived(compression.error_feedback(compression.fp16())) - 1e-6) < 6e-8)
    assert not np.any(mean_arrived(compression.fp16()))


def test_a_decay_lets_old_gradients_fade():
    compressor = compression.error_feedback(compression.fp16(), decay=0.5)
    gradients = [[[tf.fill([3], 1e-9)]]] * 40  # nothing of it can be sent
    last = run(compressor, gradients).results[-1][0]
    np.testing.assert_allclose(exact(residuals(last.states)[0]), 2e-9, rtol=1e-6)


def test_an_overflow_of_the_sum_leaves_residuals_as_they_were():
    """Each member's message is finite here, and their sum is not."""
    for name in ("int8", "qsgd", "e4m3", "fp16"):
        compressor = ROWS[f"error_feedback({name})"].compressor
        clean = [[tf.constant([1.0, 0.3, 0.1, -0.7, 0.0], tf.float16)] for _ in range(2)]
        large = [[tf.constant([6e4, 0.3, 0.1, -0.7, 0.0], tf.float16)] for _ in range(2)]
        steps = run(compressor, [clean, large])
        for member, result in enumerate(steps.results[1]):
            assert np.isinf(exact(result.total[0])[0])
            assert not result.finite
            assert bits(residuals(result.states)) == bits(residuals(steps.states(1, member)))


# Groups of another size


@every_fed_back
@pytest.mark.parametrize("former", [1, 2, 3])
def test_another_number_of_members_gets_the_same_sum_of_residuals(name, former):
    for kind in kinds(ROWS[name]):
        if kind.size != former:
            continue
        for index, shape in enumerate(SHAPES):
            if "by_size" in name and np.prod(shape) < 2:
                continue  # goes as it is
            states = [result.states[index] for result in random_run(name, kind).results[-1]]
            states = tf.nest.map_structure(lambda leaf: tf.convert_to_tensor(leaf).numpy(), states)
            compressor = ROWS[name].compressor.for_variable(tf.TensorSpec(shape, kind.dtype))
            before = np.sum([residuals([state])[0] for state in states], axis=0)
            for num_members in (1, 2, 3, 5):
                merged = compressor.merge(states, num_members)
                tf.nest.assert_same_structure(merged, states[0])
                for leaf, first in zip(tf.nest.flatten(merged), tf.nest.flatten(states[0]), strict=True):
                    assert (np.shape(leaf), np.asarray(leaf).dtype) == (np.shape(first), np.asarray(first).dtype)
                after = residuals([merged])[0].astype(np.float64) * num_members
                np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "name",
    [name for name, row in ROWS.items() if row.combinator in ("{}", "warm_up({})") and not row.code.has_feedback],
)
def test_states_without_residuals_go_on_as_they_were(name):
    compressor = ROWS[name].compressor
    states = [result.states[0] for result in random_run(name, kinds(ROWS[name])[-1]).results[-1]]
    states = tf.nest.map_structure(lambda leaf: tf.convert_to_tensor(leaf).numpy(), states)
    for num_members in (1, 2, 5):
        assert compressor.merge(states, num_members) == states[0]


# Arguments


@pytest.mark.parametrize("decay", [0, 0.0, -0.5, 1.1, float("nan"), float("inf"), True, "0.5", None])
def test_a_decay_is_more_than_zero_and_at_most_one(decay):
    with pytest.raises(ValueError) as raised:
        compression.error_feedback(compression.int8(), decay=decay)
    assert str(raised.value) == f"`decay` must be more than 0 and at most 1. Received: decay={decay!r}."


@pytest.mark.parametrize("thing", ["int8", None, compression.int8])
def test_only_a_compressor_can_be_given_error_feedback(thing):
    with pytest.raises(TypeError) as raised:
        compression.error_feedback(thing)
    assert str(raised.value) == f"`compressor` must be a tfdp.compression.Compressor. Received: {thing!r}."


def combined_with_feedback():
    """Returns what the table leaves out, since error feedback is refused."""
    codes = [code.compressor for code in CODES.values() if code.has_feedback]
    codes.append(compression.error_feedback(compression.fp16()))
    return [(combine, code) for name, combine in COMBINATORS.items() if "error_feedback(" in name for code in codes]


@pytest.mark.parametrize(("combine", "code"), combined_with_feedback())
def test_what_has_feedback_is_not_given_another(combine, code):
    with pytest.raises(
        ValueError, match=r"^`compressor` must not add what it has not sent to later gradients itself: "
    ):
        combine(code)


def test_error_feedback_shows_its_decay_where_it_has_one():
    assert repr(compression.error_feedback(compression.int8())) == "error_feedback(int8(block_size=256))"
    assert repr(compression.error_feedback(compression.fp16(), decay=0.9)) == "error_feedback(fp16(), decay=0.9)"


DELAYING = ("sign", "top_k", "exact_top_k", "random_k", "threshold", "power_sgd")


@pytest.mark.parametrize("name", [name for name, code in CODES.items() if not code.has_feedback])
def test_momentum_of_adam_behind_what_delays_gradients_is_warned_of_once(name, caplog):
    compressor = compression.error_feedback(CODES[name].compressor)
    adam = keras.optimizers.Adam()
    for optimizer in (adam, adam, keras.optimizers.LossScaleOptimizer(adam)):
        compressor.check_optimizer(optimizer)
    warnings = [record.getMessage() for record in caplog.records if "arrives some steps late" in record.getMessage()]
    assert len(warnings) == (name in DELAYING)
    for warning in warnings:
        assert warning.startswith(f"tfdp: under {compressor!r} most of a gradient")
        assert "The momentum of Adam (beta_1=0.9) then costs quality" in warning


@pytest.mark.parametrize(
    "optimizer", [keras.optimizers.Adam(beta_1=0), keras.optimizers.SGD(momentum=0.9), keras.optimizers.RMSprop()]
)
def test_other_optimizers_are_not_warned_of(optimizer, caplog):
    compression.get("topk").for_variable(tf.TensorSpec((64, 64))).check_optimizer(optimizer)
    assert not caplog.records


@pytest.mark.parametrize("combine", [compression.by_size, lambda inner: compression.warm_up(inner, steps=3)])
def test_combinators_pass_the_warning_on(combine, caplog):
    for compressor in (
        combine(compression.error_feedback(compression.top_k())),
        compression.error_feedback(combine(compression.top_k())),
    ):
        compressor.check_optimizer(keras.optimizers.AdamW())
        assert "AdamW (beta_1=0.9)" in caplog.text
        caplog.clear()
