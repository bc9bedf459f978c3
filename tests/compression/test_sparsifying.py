"""The largest elements, and those drawn by lot."""

import math

import numpy as np
import pytest
import tensorflow as tf
from compressor_table import CODES, bits, exact, kernels, random_gradients, reduce, residuals, run, totals

from tfdp import compression
from tfdp.compression import choosing, drawing, error_feedback, exact_top_k, random_k, threshold, top_k
from tfdp.compression import entries as entries_lib
from tfdp.compression.kernels import Kernels
from tfdp.traffic import bytes_on_the_wire

BUILDERS = {"top_k": top_k, "exact_top_k": exact_top_k}
both = pytest.mark.parametrize("build", BUILDERS.values(), ids=BUILDERS.keys())


@pytest.fixture(autouse=True)
def op_by_op():
    with kernels(are_compiled=False):
        yield


def sent(compressor, values, dtype=tf.float32):
    """Returns what arrives where one member has these values."""
    return totals(compressor, [values], dtype)[0]


@both
@pytest.mark.parametrize(
    ("k", "values", "expected"),
    [
        (1, [-5, 1, 2, 0], [-5, 0, 0, 0]),
        (2, [-5, 1, 2, 0], [-5, 0, 2, 0]),
        (0.01, [1, 3, 2], [0, 3, 0]),
        (10, [3, 1, 2], [3, 1, 2]),
        (1.0, [3, 1, 2], [3, 1, 2]),
        (2, [1, 1, 1, 1, 1], [1, 1, 0, 0, 0]),
        (2, [0, 0, 0], [0, 0, 0]),
        (1, [5, math.nan], [0, math.nan]),
        (1, [5, -math.inf], [0, -math.inf]),
    ],
)
def test_the_largest_magnitudes_are_sent(build, k, values, expected):
    np.testing.assert_array_equal(sent(build(k), values), expected)


@pytest.mark.parametrize(
    ("k", "num_elements", "expected"),
    [(0.01, 3, 1), (0.01, 1000, 10), (0.5, 5, 2), (1.0, 7, 7), (1, 7, 1), (10, 3, 3), (0.01, 0, 0), (5, 0, 0)],
)
def test_k_is_a_share_or_a_count(k, num_elements, expected):
    assert choosing.num_chosen(k, num_elements) == expected


@both
def test_the_mean_of_replicas_holds_what_each_sends(build):
    for total in totals(build(1), [[4.0, 0.0, 0.0], [0.0, 0.0, 6.0]]):
        np.testing.assert_array_equal(total / 2, [2, 0, 3])


@both
def test_scalars_and_gradients_without_elements_pass(build):
    gradients = [[tf.constant(3.0), tf.zeros([0, 3]), tf.constant([[1.0, 2.0]])]] * 2
    for result in reduce(build(1), gradients):
        assert float(result.total[0]) == 6.0
        assert result.total[1].shape == (0, 3)
        np.testing.assert_array_equal(exact(result.total[2]), [[0, 4]])


@both
def test_with_error_feedback_each_element_gets_its_turn(build):
    gradient = tf.constant([1.0, 0.9, 0.8])
    steps = run(error_feedback(build(1)), [[[gradient]]] * 9)
    picked = [int(np.flatnonzero(exact(results[0].total[0]))[0]) for results in steps.results]
    assert picked == [0, 1, 2] * 3
    delivered = sum(exact(results[0].total[0]) for results in steps.results)
    residual = exact(residuals(steps.results[-1][0].states)[0])
    np.testing.assert_allclose(delivered, [7, 7.2, 7.2], rtol=1e-6)
    np.testing.assert_allclose(residual, [2, 0.9, 0], atol=1e-5)
    np.testing.assert_allclose(delivered + residual, 9 * exact(gradient), rtol=1e-6)


@both
def test_two_variables_of_one_shape_keep_their_own_residuals(build):
    gradients = [tf.constant([3.0, 2.0, 1.0]), tf.constant([1.0, 2.0, 3.0])]
    states = run(error_feedback(build(1)), [[gradients]]).results[-1][0].states
    np.testing.assert_array_equal([exact(residual) for residual in residuals(states)], [[0, 2, 1], [1, 2, 0]])


# By a sample


def normal(num_elements, seed=0):
    return np.random.default_rng(seed).standard_normal(num_elements).astype(np.float32)


@pytest.mark.parametrize("shape", [(100_000,), (1000, 100), (3, 3, 100, 111), (100_015,)])
def test_a_sample_finds_nearly_all_of_the_largest(shape):
    values = normal(math.prod(shape)).reshape(shape)
    k = round(0.01 * values.size)
    chosen = choosing.largest_by_sample(Kernels(), tf.constant(values), k)
    of_all = choosing.largest(tf.constant(values), k)
    assert chosen.values.shape == chosen.indices.shape == (k,)
    found, wanted = ({int(i) for i in part.indices} for part in (chosen, of_all))
    assert len(found & wanted) >= 0.9 * k
    full = exact(chosen.values) != 0
    np.testing.assert_array_equal(exact(chosen.values)[full], values.reshape(-1)[chosen.indices.numpy()[full]])


@pytest.mark.parametrize("k", [1000, 30_000])
def test_ties_and_misjudged_samples_send_no_more_than_k_and_nothing_twice(k):
    lying = np.full(100_000, 2.0, np.float32)  # the sample sees these alone
    stride = choosing._stride(lying.size, k)
    assert stride > 1
    hidden = lying.copy()
    hidden[1::stride] = 3.0
    small = np.zeros_like(lying)
    small[::stride] = 1e-3 * np.arange(small[::stride].size)
    for values in (lying, hidden, small, np.zeros_like(lying)):
        chosen = choosing.largest_by_sample(Kernels(), tf.constant(values), k)
        again = choosing.largest_by_sample(Kernels(), tf.constant(values), k)
        assert bits(chosen) == bits(again)
        full = exact(chosen.values) != 0
        assert len(set(chosen.indices.numpy()[full])) == np.sum(full) <= k
        np.testing.assert_array_equal(exact(chosen.values)[full], values[chosen.indices.numpy()[full]])
    of_hidden = exact(choosing.largest_by_sample(Kernels(), tf.constant(hidden), k).values)
    assert np.sum(of_hidden == 3.0) == min(k, np.sum(hidden == 3.0))


def test_nan_and_infinity_are_sent_whatever_the_sample_has_seen():
    values = normal(100_000)
    for bad in (math.nan, math.inf, -math.inf):
        values[1] = bad
        chosen = choosing.largest_by_sample(Kernels(), tf.constant(values), 1000)
        assert 1 in chosen.indices.numpy()
        np.testing.assert_equal(exact(chosen.values)[chosen.indices.numpy() == 1], bad)
    chosen = choosing.largest_by_sample(Kernels(), tf.fill([100_000], math.nan), 1000)
    assert np.all(np.isnan(exact(chosen.values)))


@pytest.mark.parametrize("shape", [(1000, 100), (4096, 1024), (3, 3, 512, 512), (999, 1001)])
def test_a_sample_meets_all_columns_alike(shape):
    num_elements = math.prod(shape)
    stride = choosing._stride(num_elements, num_elements // 100)
    assert stride > 1
    assert all(math.gcd(stride, axis) == 1 for axis in shape)
    columns = np.arange(0, num_elements, stride) % shape[-1]
    counts = np.bincount(columns, minlength=shape[-1])
    assert np.max(counts) - np.min(counts) <= 1


def test_a_sample_is_no_smaller_than_it_must_be():
    for num_elements, k in [(10**6, 10**4), (10**6, 10**3), (4 * 2**20, 41943), (10**5, 500)]:
        stride = choosing._stride(num_elements, k)
        assert stride > 1
        assert num_elements / stride >= max(num_elements / 100, 128 * num_elements / k)


def test_small_gradients_are_looked_at_as_a_whole():
    assert choosing._stride(1000, 10) == 1
    values = normal(1000)
    assert bits(choosing.largest_by_sample(Kernels(), tf.constant(values), 10)) == bits(
        choosing.largest(tf.constant(values), 10)
    )


def test_a_sampled_step_in_a_graph_gives_what_it_gives_op_by_op_and_has_a_static_size():
    values = tf.constant(normal(100_000))
    traced = tf.function(lambda tensor: choosing.largest_by_sample(Kernels(), tensor, 1000), autograph=False)
    graph = traced.get_concrete_function(tf.TensorSpec(values.shape, values.dtype))
    assert [output.shape for output in graph.outputs] == [(1000,)] * 2
    assert bits(traced(values)) == bits(choosing.largest_by_sample(Kernels(), values, 1000))


# By lot


@pytest.mark.parametrize(("num_elements", "k"), [(1, 1), (7, 3), (7, 7), (10, 6), (12, 4), (1000, 10)])
def test_positions_differ_and_lie_within(num_elements, k):
    for step in range(20):
        places = drawing.positions(num_elements, k, tf.constant(step, tf.int64), "name").numpy()
        assert len(set(places)) == k
        assert 0 <= min(places) <= max(places) < num_elements


def test_each_element_has_the_same_chance():
    num_elements, k, num_steps = 7, 3, 4000
    draw = tf.function(lambda step: drawing.positions(num_elements, k, step, "name"), autograph=False)
    counts = np.zeros(num_elements)
    for step in range(num_steps):
        counts[draw(tf.constant(step, tf.int64)).numpy()] += 1
    expected = num_steps * k / num_elements
    deviation = math.sqrt(expected * (1 - k / num_elements))
    assert np.all(np.abs(counts - expected) < 4.5 * deviation)


def test_draws_differ_by_step_and_name_and_not_by_member():
    values = normal(1000)
    steps = run(random_k(0.05), [[[tf.constant(values)] * 2] * 3] * 2)
    places = [
        {tuple(np.flatnonzero(exact(result.sent[index]))) for result in results}
        for results in steps.results
        for index in (0, 1)
    ]
    assert all(len(of_members) == 1 for of_members in places)
    assert len(set.union(*places)) == 4


def test_what_is_not_finite_anywhere_makes_the_sum_nan_and_leaves_others_alone():
    poisoned = normal(1000)
    for bad in (math.nan, math.inf):
        poisoned[500] = bad
        gradients = [
            [tf.constant(normal(1000)), tf.constant(normal(5))],
            [tf.constant(poisoned), tf.constant(normal(5))],
        ]
        for result in reduce(random_k(3), gradients):
            assert not result.finite
            assert np.all(np.isnan(exact(result.total[0])))
            assert np.all(np.isfinite(exact(result.total[1])))


# From a threshold on


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.5, -0.5, 0.4, -0.6, 0.0], [0.5, -0.5, 0.0, -0.6, 0.0]),
        ([0.1, 0.2], [0.0, 0.0]),
        ([math.nan, 0.1, -math.inf], [math.nan, 0.0, -math.inf]),
    ],
)
def test_a_threshold_sends_what_reaches_it(values, expected):
    np.testing.assert_array_equal(sent(threshold(0.5), values), np.float32(expected))


def test_members_may_send_different_numbers_of_elements():
    values = [[1.0, 0.1, 2.0, 0.1], [0.1, 0.1, 0.1, 0.1], [1.0, 3.0, 0.1, 4.0]]
    for total in totals(threshold(0.5), values):
        np.testing.assert_array_equal(total, [2, 3, 2, 4])


def test_members_that_have_nothing_to_send_do_not_meet_in_collectives_of_nothing():
    sizes = []

    class Watched(Alone):
        def gather_rows(self, tensor, *, name, counts=None):
            sizes.append(int(tf.size(tensor)))
            return tf.identity(tensor)

    result = threshold(0.5).reduce([tf.zeros([3]), tf.zeros([0])], [(), ()], Watched(), name="gradients")
    assert not np.any(exact(result.total[0]))
    assert sizes == [2]


def test_a_threshold_in_a_graph_gives_what_it_gives_op_by_op():
    gradients = random_gradients(1, tf.float32)[0]

    def step(gradients):
        return CODES["threshold"].compressor.reduce(gradients, [()] * len(gradients), Alone(), name="x").total

    assert bits(tf.function(step, autograph=False)(gradients)) == bits(step(gradients))


class Alone:
    size, rank, can_branch, can_exchange = 1, 0, True, True

    def gather(self, tensor, *, name):
        return tf.identity(tensor)

    def gather_rows(self, tensor, *, name, counts=None):
        return tf.identity(tensor)


# Bytes


def test_two_members_send_a_fortieth_at_a_share_of_a_hundredth():
    spec = tf.TensorSpec([1024, 1024], tf.float32)
    plain = bytes_on_the_wire(compression.none(), spec, 2)
    assert bytes_on_the_wire(error_feedback(top_k()), spec, 2) <= 0.025 * plain
    assert bytes_on_the_wire(error_feedback(random_k()), spec, 2) <= 0.0101 * plain


def test_more_elements_than_positions_can_count_are_refused():
    entries = entries_lib.Entries(tf.ones([1]), tf.constant([0]))
    with pytest.raises(ValueError) as raised:
        entries_lib.joined([entries] * 2, [tf.TensorShape([2**30, 1]), tf.TensorShape([2**30])])
    assert str(raised.value) == (
        "The elements that are sent with their positions must be of less than 2**31. Received: 2147483648 elements. "
        "Choose another compressor for these variables, by `by_name`."
    )


# Arguments


@pytest.mark.parametrize("build", [top_k, exact_top_k, random_k, compression.dgc], ids=lambda build: build.__name__)
@pytest.mark.parametrize(
    ("k", "error", "message"),
    [
        (0, ValueError, "`k` must be at least 1 where it is a count. Received: k=0."),
        (-3, ValueError, "`k` must be at least 1 where it is a count. Received: k=-3."),
        (0.0, ValueError, "`k` must be more than 0 and at most 1 where it is a share. Received: k=0.0."),
        (1.5, ValueError, "`k` must be more than 0 and at most 1 where it is a share. Received: k=1.5."),
        (math.nan, ValueError, "`k` must be more than 0 and at most 1 where it is a share. Received: k=nan."),
        (True, TypeError, "`k` must be a share (float) or a count (int) of elements. Received: k=True."),
        ("1", TypeError, "`k` must be a share (float) or a count (int) of elements. Received: k='1'."),
        (None, TypeError, "`k` must be a share (float) or a count (int) of elements. Received: k=None."),
    ],
)
def test_k_is_checked(build, k, error, message):
    with pytest.raises(error) as raised:
        build(k)
    assert str(raised.value) == message


@pytest.mark.parametrize("value", [0, -1.0, math.inf, math.nan])
def test_a_threshold_is_more_than_zero_and_finite(value):
    with pytest.raises(ValueError) as raised:
        threshold(value)
    assert str(raised.value) == f"`value` must be more than 0 and finite. Received: value={value!r}."


@pytest.mark.parametrize("value", ["1", None, True])
def test_a_threshold_is_a_number(value):
    with pytest.raises(TypeError) as raised:
        threshold(value)
    assert str(raised.value) == f"`value` must be a number. Received: value={value!r}."


@pytest.mark.parametrize(
    ("compressor", "text"),
    [
        (top_k(), "top_k(k=0.01)"),
        (top_k(1), "top_k(k=1)"),
        (top_k(1.0), "top_k(k=1.0)"),
        (exact_top_k(0.5), "exact_top_k(k=0.5)"),
        (random_k(7), "random_k(k=7)"),
        (threshold(1e-3), "threshold(0.001)"),
    ],
)
def test_what_sends_a_part_shows_its_options(compressor, text):
    assert repr(compressor) == text
