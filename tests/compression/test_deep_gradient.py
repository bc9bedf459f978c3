"""Momentum before compression, warming up of sparsity, and which optimizers go with it."""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf
from compressor_table import DTYPES, bits, exact, kernels, random_gradients, run

from tfdp import compression
from tfdp.compression import by_name, by_size, dgc, warm_up
from tfdp.compression.deep_gradient import _stages
from tfdp.traffic import bytes_on_the_wire

MOMENTUM = 0.9
SHAPES = [(40,), (5, 6)]


@pytest.fixture(autouse=True)
def op_by_op():
    with kernels(are_compiled=False):
        yield


def steps_of(compressor, num_steps, size=2, shapes=SHAPES, dtype=tf.float32, adapt=lambda group: group):
    return run(compressor, [random_gradients(size, dtype, shapes, seed=step) for step in range(num_steps)], adapt)


def gathered_by_momentum(steps, member, index, momentum=MOMENTUM):
    """Returns what the member's momentum has given in all steps: it begins anew where an element was sent."""
    velocity = gathered = 0.0
    for gradients, results in zip(steps.gradients, steps.results, strict=True):
        velocity = momentum * velocity + exact(gradients[member][index])
        gathered += velocity
        velocity = np.where(exact(results[member].sent[index]) != 0, 0.0, velocity)
    return gathered


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("size", [1, 3])
def test_totals_and_what_is_kept_add_up_to_what_momentum_has_gathered(size, dtype):
    steps = steps_of(dgc(0.1, momentum=MOMENTUM), 6, size, dtype=dtype)
    for index in range(len(SHAPES)):
        arrived = sum(exact(results[0].total[index]) for results in steps.results)
        kept = sum(exact(result.states[index]["unsent"]) for result in steps.results[-1])
        expected = sum(gathered_by_momentum(steps, member, index) for member in range(size))
        np.testing.assert_allclose(arrived + kept, expected, rtol=1e-5, atol=40 * exact(dtype_eps(dtype)))


def dtype_eps(dtype):
    return tf.constant({tf.float16: 2.0**-10, tf.bfloat16: 2.0**-7}.get(dtype, 2.0**-22))


def test_what_has_never_been_sent_is_what_momentum_sgd_would_have_moved_by():
    steps = steps_of(dgc(1, momentum=MOMENTUM), 5)
    for member, index in [(0, 0), (1, 1)]:
        velocity = moved = 0.0
        for gradients in steps.gradients:
            velocity = MOMENTUM * velocity + exact(gradients[member][index])
            moved = moved + velocity
        never = np.all([exact(results[member].sent[index]) == 0 for results in steps.results], axis=0)
        assert np.sum(never) > 20
        kept = exact(steps.results[-1][member].states[index]["unsent"])
        np.testing.assert_allclose(kept[never], moved[never], rtol=1e-5, atol=1e-5)


def test_where_all_is_sent_totals_are_sums_of_gradients():
    steps = steps_of(dgc(1.0), 3)
    for gradients, results in zip(steps.gradients, steps.results, strict=True):
        for index in range(len(SHAPES)):
            np.testing.assert_array_equal(
                exact(results[0].total[index]), exact(gradients[0][index] + gradients[1][index])
            )
        for result in results:
            assert not any(np.any(exact(state[part])) for state in result.states for part in ("momentum", "unsent"))


def test_what_was_sent_begins_anew():
    steps = run(dgc(1, momentum=0.5), [[[tf.constant([4.0, 2.0])]], [[tf.constant([0.0, 2.0])]]])
    first, second = (results[0] for results in steps.results)
    np.testing.assert_array_equal(exact(first.total[0]), [4, 0])
    np.testing.assert_array_equal(exact(first.states[0]["momentum"]), [0, 2])
    np.testing.assert_array_equal(exact(second.total[0]), [0, 5])  # 2 and then half of it and 2
    assert not np.any(exact(second.states[0]["momentum"]))


def test_without_momentum_it_is_top_k_with_error_feedback():
    one = steps_of(dgc(3, momentum=0.0), 4)
    other = steps_of(compression.error_feedback(compression.top_k(3)), 4)
    for results, expected in zip(one.results, other.results, strict=True):
        assert bits(results[0].total) == bits(expected[0].total)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_leaves_the_state_as_it_was(bad):
    good = tf.constant([1.0, 2.0, 3.0])
    for clip_norm in (None, 1.0):
        steps = run(dgc(1, clip_norm=clip_norm), [[[good], [good]], [[good], [tf.constant([bad, 0.0, 0.0])]]])
        for member, result in enumerate(steps.results[1]):
            assert not result.finite
            assert not np.isfinite(exact(result.total[0])[0])
            for part in ("momentum", "unsent"):
                assert bits(result.states[0][part]) == bits(steps.states(1, member)[0][part])


@pytest.mark.parametrize("scale", [1e-30, 1.0, 8e37])
@pytest.mark.parametrize("size", [1, 2])
def test_each_member_clips_its_own_gradient_to_a_root_of_their_number(size, scale):
    gradient = np.float32([3.0, 4.0]) * np.float32(scale)
    small = tf.constant(gradient * 1e-3)
    steps = run(dgc(1.0, clip_norm=scale), [[[tf.constant(gradient), small] for _ in range(size)]])
    for total, expected in zip(steps.results[0][0].total, [gradient / 5 / size**0.5, gradient * 1e-3], strict=True):
        np.testing.assert_allclose(exact(total), size * expected, rtol=1e-5)


def test_zeros_are_not_clipped():
    steps = run(dgc(1.0, clip_norm=1.0), [[[tf.zeros([3]), tf.zeros([0])]]])
    assert not np.any(exact(steps.results[0][0].total[0]))


# Warming up


def test_stages_send_a_quarter_of_the_stage_before():
    shapes = [tf.TensorShape([10_000]), tf.TensorShape([3])]
    assert _stages(0.001, shapes, True) == [[2500, 1], [625, 1], [156, 1], [39, 1], [10, 1]]
    assert _stages(0.001, shapes, False) == [[10, 1]]
    assert _stages(700, shapes[:1], True) == [[2500], [700]]
    assert _stages(0.5, shapes[:1], True) == [[5000]]


class Unbranching:
    def __init__(self, communicator):
        self.size, self.rank, self.can_branch, self.can_exchange = communicator.size, communicator.rank, False, True
        self.sum, self.gather = communicator.sum, communicator.gather


@pytest.mark.parametrize("adapt", [lambda group: group, Unbranching], ids=["branching", "unbranching"])
def test_each_stage_lasts_equally_long(adapt):
    steps = steps_of(dgc(1, warm_up_steps=4), 6, shapes=[(40,)], adapt=adapt)
    num_sent = [np.count_nonzero(exact(results[0].sent[0])) for results in steps.results]
    assert num_sent == [10, 10, 2, 2, 1, 1]
    assert [int(results[0].states[0]["steps"]) for results in steps.results] == [1, 2, 3, 4, 4, 4]


def test_a_group_that_cannot_branch_gets_the_same():
    compressor = dgc(2, warm_up_steps=3)
    one, other = steps_of(compressor, 5), steps_of(compressor, 5, adapt=Unbranching)
    assert bits([results[0].total for results in one.results]) == bits([results[0].total for results in other.results])
    assert bits([results[1].states for results in one.results]) == bits([r[1].states for r in other.results])


@pytest.mark.parametrize("can_branch", [True, False])
def test_a_step_in_a_graph_gives_what_it_gives_op_by_op(can_branch):
    compressor = dgc(2, warm_up_steps=2, clip_norm=1.0)
    gradients = random_gradients(1, tf.float32, SHAPES)[0]
    states = tf.nest.map_structure(tf.convert_to_tensor, [compressor.init(g) for g in gradients])
    group = Alone(can_branch)

    def two_steps(gradients, states):
        first = compressor.reduce(gradients, states, group, name="gradients")
        second = compressor.reduce(gradients, first.states, group, name="gradients")
        return [*first.total, *second.total], second.states

    plain, traced = two_steps(gradients, states), tf.function(two_steps, autograph=False)(gradients, states)
    for before, after in zip(tf.nest.flatten(plain), tf.nest.flatten(traced), strict=True):
        np.testing.assert_allclose(exact(before), exact(after), rtol=1e-5, atol=1e-6)


class Alone:
    size, rank, can_exchange = 1, 0, True

    def __init__(self, can_branch):
        self.can_branch = can_branch

    def gather(self, tensor, *, name):
        return tf.identity(tensor)


def test_reports_are_about_what_comes_after():
    spec = tf.TensorSpec([1000, 100], tf.float32)
    assert repr(dgc(0.01, warm_up_steps=9).settled()) == "dgc(k=0.01, momentum=0.9)"
    assert dgc(0.01).settled().settled().init(spec).keys() == dgc(0.01, warm_up_steps=9).init(spec).keys()
    assert bytes_on_the_wire(dgc(0.01, warm_up_steps=9), spec, 2) == 8 * 1000


# Groups of another size


def test_another_number_of_members_gets_the_same_sums():
    compressor = dgc(1, warm_up_steps=9)
    steps = steps_of(compressor, 3, size=3, shapes=[(4,)])
    states = [tf.nest.map_structure(lambda leaf: leaf.numpy(), result.states[0]) for result in steps.results[-1]]
    for num_members in (1, 2, 5):
        merged = compressor.merge(states, num_members)
        assert merged["steps"] == 3
        for part in ("momentum", "unsent"):
            before = np.sum([state[part] for state in states], axis=0)
            assert merged[part].dtype == before.dtype
            np.testing.assert_allclose(merged[part] * num_members, before, rtol=1e-6)


# Optimizers


class Inner:
    """Stands for any optimizer around another."""

    def __init__(self, inner_optimizer):
        self.inner_optimizer = inner_optimizer


WITHOUT_MOMENTUM = {
    "SGD": lambda: keras.optimizers.SGD(0.1),
    "RMSprop": lambda: keras.optimizers.RMSprop(0.1),
    "Adagrad": lambda: keras.optimizers.Adagrad(0.1),
    "LossScaleOptimizer": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1)),
}
WITH_MOMENTUM = {
    "SGD with momentum=0.9": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "RMSprop with momentum=0.5": lambda: keras.optimizers.RMSprop(0.1, momentum=0.5),
    "Adam with beta_1=0.9": lambda: keras.optimizers.Adam(0.1),
    "AdamW with beta_1=0.9": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.AdamW(0.1)),
    "Lion with beta_1=0.9": lambda: Inner(keras.optimizers.Lion(0.1)),
}
COMBINED = {
    "bare": dgc,
    "by_size": lambda: by_size(dgc()),
    "otherwise": lambda: by_size(compression.bf16(), otherwise=dgc()),
    "by_name": lambda: by_name({"kernel": dgc()}),
    "warm_up": lambda: warm_up(dgc(), steps=3),
}


@pytest.mark.parametrize("combine", COMBINED.values(), ids=COMBINED.keys())
@pytest.mark.parametrize("found", WITH_MOMENTUM)
def test_an_optimizer_with_momentum_is_refused(found, combine):
    with pytest.raises(ValueError) as raised:
        combine().check_optimizer(WITH_MOMENTUM[found]())
    assert str(raised.value) == (
        "dgc(k=0.001, momentum=0.9) adds momentum before it sends, so the optimizer must have none of its own. "
        f"Received: {found}. Use keras.optimizers.SGD(learning_rate), and set the momentum of the compressor."
    )


@pytest.mark.parametrize("name", WITHOUT_MOMENTUM)
def test_an_optimizer_without_momentum_is_taken(name):
    dgc().check_optimizer(WITHOUT_MOMENTUM[name]())


def test_other_compressors_take_any_optimizer():
    for compressor in (
        compression.none(),
        compression.error_feedback(compression.top_k()),
        by_size(compression.int8()),
    ):
        for build in WITH_MOMENTUM.values():
            compressor.check_optimizer(build())


def test_error_feedback_asks_what_it_is_around():
    class Refusing(compression.Compressor):
        def reduce(self, gradients, states, group, *, name):
            raise NotImplementedError

        def check_optimizer(self, optimizer):
            raise ValueError(f"not {optimizer}")

    with pytest.raises(ValueError, match="not this"):
        compression.error_feedback(Refusing()).check_optimizer("this")


# Arguments


@pytest.mark.parametrize("momentum", [-0.1, 1, 1.0, math.nan, "0.9", None, True])
def test_momentum_is_at_least_zero_and_less_than_one(momentum):
    with pytest.raises(ValueError) as raised:
        dgc(momentum=momentum)
    assert str(raised.value) == f"`momentum` must be at least 0 and less than 1. Received: momentum={momentum!r}."


@pytest.mark.parametrize("clip_norm", [0, -1.0, math.inf, math.nan, "1", True])
def test_a_norm_is_more_than_zero_and_finite(clip_norm):
    with pytest.raises(ValueError) as raised:
        dgc(clip_norm=clip_norm)
    assert str(raised.value) == (
        f"`clip_norm` must be more than 0 and finite, or None. Received: clip_norm={clip_norm!r}."
    )


@pytest.mark.parametrize(
    ("steps", "error", "expectation"),
    [
        (1.5, TypeError, "must be an integer"),
        (True, TypeError, "must be an integer"),
        (None, TypeError, "must be an integer"),
        (-1, ValueError, "must be at least 0 and less than 2**31"),
        (2**31, ValueError, "must be at least 0 and less than 2**31"),
    ],
)
def test_steps_of_warming_up_are_an_integer_of_at_least_zero(steps, error, expectation):
    with pytest.raises(error) as raised:
        dgc(warm_up_steps=steps)
    assert str(raised.value) == f"`warm_up_steps` {expectation}. Received: warm_up_steps={steps!r}."


@pytest.mark.parametrize(
    ("compressor", "text"),
    [
        (dgc(), "dgc(k=0.001, momentum=0.9)"),
        (dgc(5, momentum=0.5, clip_norm=2.0), "dgc(k=5, momentum=0.5, clip_norm=2)"),
        (dgc(warm_up_steps=7), "dgc(k=0.001, momentum=0.9, warm_up_steps=7)"),
    ],
)
def test_it_shows_its_options(compressor, text):
    assert repr(compressor) == text


def test_small_variables_beside_dgc_have_momentum_too():
    gradient = tf.constant([1.0, -2.0])
    for results in zip((1.0, 1.9, 2.71), run(compression.with_momentum(), [[[gradient]] * 2] * 3).results, strict=True):
        factor, (result, _) = results
        np.testing.assert_allclose(result.total[0], 2 * factor * gradient.numpy(), rtol=1e-6)


def test_momentum_is_the_same_for_another_number_of_members():
    compressor = compression.with_momentum(0.5)
    states = [{"momentum": np.float32([3, 4])}] * 4
    np.testing.assert_array_equal(compressor.merge(states, 2)["momentum"], [3, 4])
