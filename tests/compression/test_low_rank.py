"""Matrices that travel as products of two thin ones."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from compressor_table import CODES, Kind, bits, exact, kernels, random_gradients, random_run, reduce, residuals, run

from tfdp.compression import error_feedback, none, power_sgd
from tfdp.traffic import bytes_on_the_wire

ALWAYS = 0.01  # as a compression rate: even where P and Q are more numbers than the matrix


def of_rank(rank, rows, columns, seed=0):
    """Returns a matrix of that rank, as an array."""
    generator = np.random.default_rng(seed)
    return generator.standard_normal([rows, rank]) @ generator.standard_normal([rank, columns])


def constant_run(compressor, matrices_of_members, num_steps, dtype=tf.float32):
    gradients = [[tf.cast(tf.constant(matrix), dtype)] for matrix in matrices_of_members]
    with kernels(are_compiled=False):  # compiling takes most of a test's time
        return run(compressor, [gradients] * num_steps)


def outer(rows, columns):
    return np.outer(np.asarray(rows, float), np.asarray(columns, float))


# Right values


@pytest.mark.parametrize("rate", [2.0, 1, ALWAYS])
def test_an_outer_product_is_exact_in_the_first_step(rate):
    matrix = outer((1, 2, 3), (4, 5))
    for result in constant_run(power_sgd(1, min_compression_rate=rate), [matrix] * 2, 1).results[0]:
        np.testing.assert_allclose(exact(result.total[0]), 2 * matrix, rtol=1e-5)


@pytest.mark.parametrize("rate", [2.0, ALWAYS])
def test_zeros_arrive_as_zeros_and_give_way_to_what_comes_later(rate):
    compressor, matrix = power_sgd(2, min_compression_rate=rate), of_rank(2, 5, 4)
    steps = run(compressor, [[[tf.constant(each, tf.float32)]] for each in (np.zeros((5, 4)),) * 2 + (matrix,)])
    for results in steps.results[:2]:
        assert not np.any(exact(results[0].total[0]))
    np.testing.assert_allclose(exact(steps.results[2][0].total[0]), matrix, atol=1e-5)


def test_vectors_and_scalars_arrive_as_they_are():
    gradients = [[tf.random.stateless_normal(shape, [rank, 0]) for shape in [(), (7,), (4096,)]] for rank in range(3)]
    for result in reduce(power_sgd(), gradients):
        for index, total in enumerate(result.total):
            assert np.array_equal(total, tf.add_n([gradient[index] for gradient in gradients]))


@pytest.mark.parametrize("rate", [2.0, ALWAYS])
def test_a_kernel_of_a_convolution_keeps_its_shape(rate):
    matrix = of_rank(1, 36, 8)
    kernel = tf.constant(matrix.reshape([3, 3, 4, 8]), tf.float32)
    (result,) = reduce(power_sgd(1, min_compression_rate=rate), [[kernel]])
    assert result.total[0].shape == result.sent[0].shape == kernel.shape
    np.testing.assert_allclose(exact(result.total[0]), exact(kernel), atol=1e-5)


@pytest.mark.parametrize("shape", [(2, 3), (3, 2), (1, 5), (5, 1), (1, 1)])
def test_no_more_directions_travel_than_a_matrix_has(shape):
    gradient = tf.random.stateless_normal(shape, [0, 0])
    compressor = power_sgd(4, min_compression_rate=ALWAYS)
    assert compressor.init(tf.TensorSpec(shape, tf.float32))["q"].shape == (shape[1], min(shape))
    (result,) = reduce(compressor, [[gradient]])
    np.testing.assert_allclose(exact(result.total[0]), exact(gradient), atol=1e-5)


@pytest.mark.parametrize("rate", [2.0, ALWAYS])
def test_members_may_each_have_a_direction_of_their_own(rate):
    first, second = outer(np.eye(40)[0], np.eye(50)[1]), outer(np.eye(40)[2], np.eye(50)[3])
    for result in constant_run(power_sgd(2, min_compression_rate=rate), [first, second], 1).results[0]:
        np.testing.assert_allclose(exact(result.total[0]), first + second, atol=1e-5)


@pytest.mark.parametrize(("rank", "dtype"), [(1, tf.float32), (3, tf.float32), (4, tf.float32), (4, tf.float64)])
def test_a_sum_of_no_higher_rank_is_exact_and_stays_so(rank, dtype):
    matrix, other = of_rank(rank, 60, 50), of_rank(rank, 60, 50) * 3
    for results in constant_run(power_sgd(4), [matrix, other], 5, dtype).results:
        error = exact(results[0].total[0]) - matrix - other
        assert np.max(np.abs(error)) < (1e-11 if dtype == tf.float64 else 1e-4)


def test_directions_are_found_from_step_to_step():
    """The largest error of the best approximation is what remains."""
    generator = np.random.default_rng(0)
    left, right = (np.linalg.qr(generator.standard_normal([n, 20]))[0] for n in (80, 70))
    matrix = left * 0.8 ** np.arange(20) @ right.T
    best = np.sqrt(np.sum(0.8 ** (2 * np.arange(4, 20))))
    errors = [
        np.linalg.norm(exact(results[0].total[0]) - matrix)
        for results in constant_run(power_sgd(4), [matrix], 15).results
    ]
    assert errors[-1] < 1.01 * best < errors[0]
    assert np.all(np.diff(errors) < 1e-5)


@pytest.mark.parametrize("size", [1, 3])
def test_everything_is_sent_in_the_end(size):
    matrices = [np.random.default_rng(rank).standard_normal([40, 30]) for rank in range(size)]
    steps = constant_run(error_feedback(power_sgd(2)), matrices, 80)
    arrived = sum(exact(results[0].total[0]) for results in steps.results) / len(steps.results)
    assert np.linalg.norm(arrived - sum(matrices)) < 0.2 * np.linalg.norm(sum(matrices))
    kept = sum(exact(residuals(result.states)[0]) for result in steps.results[-1])
    np.testing.assert_allclose(arrived + kept / len(steps.results), sum(matrices), atol=1e-3)


def test_blocks_that_share_no_row_and_no_column_are_both_sent_with_error_feedback():
    first, second = np.zeros((2, 40, 40))
    first[:20, :20], second[20:, 20:] = 100 * of_rank(2, 20, 20), of_rank(2, 20, 20, seed=1)
    gradients = [[[tf.constant(first if step < 20 else second, tf.float32)]] for step in range(40)]
    with kernels(are_compiled=False):
        steps = run(error_feedback(power_sgd(2)), gradients)
    arrived = sum(exact(results[0].total[0]) for results in steps.results)
    np.testing.assert_allclose(arrived, 20 * (first + second), atol=0.1)


# Any magnitude


@pytest.mark.parametrize("rate", [2.0, ALWAYS])
@pytest.mark.parametrize("magnitude", [1e-45, 1e-38, 1e-30, 1.0, 1e30, 1e38])
def test_magnitudes_of_all_kinds_stay_finite(magnitude, rate):
    matrix = magnitude * outer(np.ones(40), np.linspace(-1, 1, 50))
    for results in constant_run(error_feedback(power_sgd(4, min_compression_rate=rate)), [matrix] * 3, 3).results:
        for result in results:
            assert result.finite
            for leaf in tf.nest.flatten([result.total, result.sent, result.states]):
                assert np.all(np.isfinite(exact(leaf)))
            if magnitude >= 1e-30:
                np.testing.assert_allclose(exact(result.total[0]), 3 * matrix, atol=1e-5 * magnitude, rtol=1e-5)


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_the_largest_matrices_of_equal_elements_have_a_finite_sum(dtype, size):
    matrix = np.full((40, 64), float(dtype.max) / size * (1 - 1e-5))
    for result in constant_run(power_sgd(4), [matrix] * size, 2, dtype).results[-1]:
        np.testing.assert_allclose(exact(result.total[0]), size * matrix, rtol=1e-5)
        assert result.finite


def test_columns_of_unlike_magnitudes_are_all_found():
    matrix = outer(np.eye(40)[0], np.eye(50)[0]) * 1e15 + outer(np.eye(40)[1], np.eye(50)[1]) * 1e-15
    last = constant_run(error_feedback(power_sgd(2)), [matrix], 9).results[-1][0]
    assert np.all(np.isfinite(exact(last.total[0])))
    np.testing.assert_allclose(exact(last.total[0])[0, 0], 1e15, rtol=1e-5)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [tf.float16, tf.float32, tf.float64])
def test_one_nan_or_infinity_makes_the_whole_matrix_nan_on_all_members_and_no_other(value, dtype):
    good = np.random.default_rng(0).standard_normal([40, 30])
    bad = good.copy()
    bad[7, 11] = value
    rank_one = tf.cast(tf.constant(outer(good[:, 0], good[0])), dtype)
    steps = run(
        power_sgd(4),
        [[[tf.cast(tf.constant(of_member), dtype), rank_one] for of_member in members] for members in ([good, bad],)],
    )
    for result in steps.results[0]:
        assert np.all(np.isnan(exact(result.total[0])))
        assert not result.finite
        np.testing.assert_allclose(exact(result.total[1]), 2 * exact(rank_one), rtol=1e-2, atol=1e-3)
        assert bits(result.states[0]) == bits(steps.first_states[0])


def test_a_total_beyond_the_range_of_half_precision_is_told():
    matrix = np.full((40, 30), 4e4)
    for compressor in (power_sgd(), error_feedback(power_sgd())):
        for result in constant_run(compressor, [matrix] * 2, 1, tf.float16).results[0]:
            assert np.all(np.isinf(exact(result.total[0])))
            assert not result.finite
            for state in tf.nest.flatten(result.states):
                assert np.all(np.isfinite(exact(state)))


# What is remembered


def test_first_directions_follow_from_the_shape_alone():
    compressor = power_sgd(4)
    first, again = (compressor.init(tf.TensorSpec((60, 50), tf.float32, name=name))["q"] for name in ("a", "b"))
    assert bits(first) == bits(again)
    other = compressor.init(tf.TensorSpec((61, 50), tf.float32))["q"]
    assert first.shape == other.shape == (50, 4)
    assert not np.any(first == other)


@pytest.mark.parametrize(
    ("dtype", "of_q"), [(tf.float16, "float32"), (tf.bfloat16, "float32"), (tf.float64, "float64")]
)
def test_directions_are_kept_in_single_precision_and_more(dtype, of_q):
    assert power_sgd().init(tf.TensorSpec((60, 50), dtype))["q"].dtype == of_q


def test_members_remember_the_same():
    gradients = [[tf.random.stateless_normal([60, 50], [rank, 0])] for rank in range(3)]
    for results in run(power_sgd(), [gradients] * 3).results:
        assert len({tuple(bits(result.states)) for result in results}) == 1


def test_a_group_of_another_size_goes_on_with_what_all_remembered():
    state = {"q": np.random.default_rng(0).standard_normal([50, 4]).astype("float32")}
    assert bits(power_sgd().merge([state] * 3, 2)) == bits(state)


def test_what_is_small_remembers_nothing():
    for shape in [(), (4096,), (9, 10), (0, 3), (3, 0)]:
        assert power_sgd().init(tf.TensorSpec(shape, tf.float32)) == ()


# Kernels


@pytest.mark.parametrize("name", ["power_sgd", "error_feedback(power_sgd)"])
def test_compiled_kernels_do_what_the_same_operations_do_one_by_one(name):
    compiled, plain = (random_run(name, Kind(tf.float32, 2, is_compiled)) for is_compiled in (True, False))
    for one, other in zip(compiled.results[0][0].total, plain.results[0][0].total, strict=True):
        np.testing.assert_allclose(exact(one), exact(other), rtol=1e-5, atol=1e-5)


def test_kernels_are_compiled_once():
    compressor = CODES["power_sgd"].compressor
    counts = []
    for seed in range(2):
        run(compressor, [random_gradients(2, tf.float32, seed=seed)] * 2)
        counts.append(compressor._kernels.num_traces())
    assert counts[0] == counts[1]
    assert counts[0]


@pytest.mark.parametrize("rank", [8, 9])
def test_many_directions_are_multiplied_otherwise_and_give_the_same(rank):
    matrix = of_rank(8, 60, 50)
    steps = constant_run(error_feedback(power_sgd(rank)), [matrix, -0.5 * matrix], 2)
    for results in steps.results:
        np.testing.assert_allclose(exact(results[0].total[0]), 0.5 * matrix, atol=1e-4)
        for result in results:
            np.testing.assert_allclose(exact(residuals(result.states)[0]), 0, atol=1e-4)


# Bytes


class Recording:
    """A group of one that keeps the names, dtypes and shapes of what is summed."""

    size, rank, can_branch, can_exchange = 1, 0, True, True

    def __init__(self):
        self.calls = []

    def sum(self, tensors, *, name):
        self.calls.append((name, [(tensor.dtype, tuple(tensor.shape)) for tensor in tensors]))
        return list(tensors)


@pytest.mark.parametrize("dtype", [tf.float16, tf.float32, tf.float64])
def test_all_that_is_not_compressed_travels_with_the_first_factors(dtype):
    gradients = [tf.zeros(shape, dtype) for shape in [(5,), (60, 50), (3, 4), (40, 70)]]
    group, compressor = Recording(), power_sgd(4)
    states = [compressor.init(tf.TensorSpec(gradient.shape, dtype)) for gradient in gradients]
    compressor.reduce(gradients, states, group, name="x")
    wide = tf.float64 if dtype == tf.float64 else tf.float32
    assert group.calls == [
        ("x P", [(wide, shape) for shape in [(60, 4), (40, 4), (5,), (3, 4)]]),
        ("x Q", [(wide, shape) for shape in [(4, 50), (4, 70)]]),
    ]


def test_where_nothing_is_compressed_there_is_one_sum():
    group = Recording()
    power_sgd().reduce([tf.zeros([5]), tf.zeros([3, 4])], [(), ()], group, name="x")
    assert len(group.calls) == 1


@pytest.mark.parametrize(
    ("shape", "rank", "rate", "is_compressed"),
    [((33, 65), 4, 2, True), ((16, 16), 4, 2, False), ((17, 16), 4, 2, True), ((16, 16), 4, 1.9, True)],
)
def test_a_matrix_is_compressed_where_that_saves_enough(shape, rank, rate, is_compressed):
    compressor = power_sgd(rank, min_compression_rate=rate)
    assert bool(compressor.init(tf.TensorSpec(shape, tf.float32))) == is_compressed


def test_an_mlp_sends_about_a_hundredth_of_its_bytes():
    widths = [512, 1024, 1024, 1024, 1024, 10]
    shapes = [shape for pair in itertools.pairwise(widths) for shape in (pair, pair[1:])]
    specs = [tf.TensorSpec(shape, tf.float32) for shape in shapes]
    plain = bytes_on_the_wire(none(), specs, 2)
    assert plain == 4 * 3_684_362
    for compressor in (power_sgd(4), error_feedback(power_sgd(4))):
        assert bytes_on_the_wire(compressor, specs, 2) <= 0.013 * plain


# Arguments


@pytest.mark.parametrize("rank", [1.0, "4", None, True])
def test_a_rank_is_an_integer(rank):
    with pytest.raises(TypeError) as raised:
        power_sgd(rank)
    assert str(raised.value) == f"`rank` must be an integer. Received: rank={rank!r}."


@pytest.mark.parametrize("rank", [0, -1])
def test_a_rank_is_one_or_more(rank):
    with pytest.raises(ValueError) as raised:
        power_sgd(rank)
    assert str(raised.value) == f"`rank` must be at least 1. Received: rank={rank}."


@pytest.mark.parametrize("rate", ["2", None, True])
def test_a_compression_rate_is_a_number(rate):
    with pytest.raises(TypeError) as raised:
        power_sgd(min_compression_rate=rate)
    expected = f"`min_compression_rate` must be a number. Received: min_compression_rate={rate!r}."
    assert str(raised.value) == expected


@pytest.mark.parametrize("rate", [0, -1.0, float("nan"), float("inf")])
def test_a_compression_rate_is_more_than_zero_and_finite(rate):
    with pytest.raises(ValueError) as raised:
        power_sgd(min_compression_rate=rate)
    expected = f"`min_compression_rate` must be more than 0 and finite. Received: min_compression_rate={rate}."
    assert str(raised.value) == expected


def test_it_shows_its_options():
    assert repr(power_sgd()) == "power_sgd(rank=4, min_compression_rate=2)"
    assert repr(power_sgd(2, min_compression_rate=1.5)) == "power_sgd(rank=2, min_compression_rate=1.5)"
