"""Laws that every compressor keeps, bare and combined; `compressor_table` holds the table."""

import numpy as np
import pytest
import tensorflow as tf
from compressor_table import (
    CODES,
    FULLY_TESTED,
    KINDS_OF_CODES,
    ROUNDOFF,
    ROWS,
    SHAPES,
    SMALLEST,
    bits,
    exact,
    kernels,
    kinds,
    random_gradients,
    random_run,
    reduce,
    residuals,
    run,
    totals,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdp import compression


def is_of_a_kind(row):
    """Returns whether what a row is made of stands for others like it."""
    return row.code in [CODES[name] for name in KINDS_OF_CODES]


every_row = pytest.mark.parametrize("name", ROWS)
every_code = pytest.mark.parametrize("code", CODES.values(), ids=CODES.keys())
fixed_examples = settings(derandomize=True, database=None, deadline=None, max_examples=5)


@every_row
def test_the_total_is_the_sum_of_what_the_members_sent(name):
    code = ROWS[name].code
    for kind in kinds(ROWS[name]):
        dtype, size = kind.dtype, kind.size
        travels = [dtype, *([code.travels] if code.travels else [])]
        roundoff, smallest = max(map(ROUNDOFF.get, travels)), max(map(SMALLEST.get, travels))
        for results in random_run(name, kind).results:
            for index, shape in enumerate(SHAPES):
                sent = [exact(result.sent[index]) for result in results]
                total = exact(results[0].total[index])
                # Each of R - 1 additions rounds once where it travels; encoding and decoding round in the gradient's
                # own dtype.
                bound = ((size - 1) * roundoff + 4 * ROUNDOFF[dtype]) * np.sum(np.abs(sent), axis=0)
                bound += size * size * smallest
                if code.block_size or code.rounds_like_largest:
                    # What a second encoding loses is as large as the largest of a block, and is subtracted.
                    bound += 8 * size * ROUNDOFF[dtype] * np.max(np.abs([*sent, total]))
                error = np.abs(total - np.sum(sent, axis=0))
                assert np.all(error <= 1.01 * bound), (kind, shape, np.max(error - bound))


@every_row
def test_every_member_gets_the_same_bits(name):
    for kind in kinds(ROWS[name]):
        for first, *others in random_run(name, kind).results:
            for other in others:
                assert bits(other.total) == bits(first.total), kind


@every_row
def test_shapes_and_dtypes_come_back(name):
    for kind in kinds(ROWS[name]):
        for results in random_run(name, kind).results:
            for result in results:
                assert [tuple(total.shape) for total in result.total] == SHAPES
                assert [tuple(sent.shape) for sent in result.sent] == SHAPES
                assert {tensor.dtype for tensor in [*result.total, *result.sent]} == {kind.dtype}


@every_row
def test_states_keep_their_number_and_their_form(name):
    for kind in kinds(ROWS[name]):
        steps = random_run(name, kind)
        for results in steps.results:
            for result in results:
                assert len(result.states) == len(SHAPES)
                for first, state in zip(steps.first_states, result.states, strict=True):
                    tf.nest.assert_same_structure(first, state)
                    for before, after in zip(tf.nest.flatten(first), tf.nest.flatten(state), strict=True):
                        before, after = tf.convert_to_tensor(before), tf.convert_to_tensor(after)
                        assert (before.shape, before.dtype) == (after.shape, after.dtype)


@every_row
def test_the_same_inputs_give_the_same_bits_again(name):
    kind = kinds(ROWS[name])[-1]
    once = random_run(name, kind)
    with kernels(are_compiled=kind.is_compiled):
        again = run(ROWS[name].compressor, once.gradients)
    assert bits(again.results) == bits(once.results)


@every_row
def test_whether_a_total_is_finite_is_told_rightly(name):
    for kind in kinds(ROWS[name]):
        for results in random_run(name, kind).results:
            for result in results:
                assert result.finite is None or bool(result.finite) == bool(compression.all_finite(result.total))


def poisoned(gradients, rank):
    """Returns gradients with NaN, infinity and minus infinity in those of one member: (tensor, element) -> value."""
    where = {(0, 0): np.inf, (2, 14): -np.inf, (3, 300): np.nan, (3, 2144): np.inf, (4, 0): -np.inf}
    arrays = [np.array(exact(tensor)) for tensor in gradients[rank]]
    for (index, element), value in where.items():
        arrays[index].reshape(-1)[element] = value
    bad = [tf.cast(tf.constant(array), tensor.dtype) for array, tensor in zip(arrays, gradients[rank], strict=True)]
    return [bad if member == rank else good for member, good in enumerate(gradients)], where


@every_row
def test_nan_and_infinity_reach_every_member_and_enter_no_state(name):
    row = ROWS[name]
    for kind in kinds(row):
        if kind.size == 3 and (kind.dtype == tf.float32 or row.combinator == "{}"):
            clean = random_gradients(kind.size, kind.dtype)
            bad, where = poisoned(clean, rank=kind.size - 1)
            with kernels(are_compiled=kind.is_compiled):
                steps = run(row.compressor, [clean, bad, clean, bad])
            for step in (1, 3):
                for member, result in enumerate(steps.results[step]):
                    check_poisoned(row.code, result.total, where)
                    assert result.finite is None or not result.finite
                    for state in tf.nest.flatten(result.states):
                        assert np.all(np.isfinite(exact(state))), kind
                    if "error_feedback" in name:
                        assert bits(residuals(result.states)) == bits(residuals(steps.states(step, member)))
            for result in steps.results[2]:
                assert all(np.all(np.isfinite(exact(total))) for total in result.total), kind


def check_poisoned(code, total, where):
    for index, tensor in enumerate(total):
        flat = exact(tensor).reshape(-1)
        if code.poisons_tensors and code.compresses(tuple(tensor.shape)):
            is_poisoned = index in {owner for owner, _ in where}
            assert np.all(np.isfinite(flat) != is_poisoned), index
            continue
        spared = np.ones(flat.size, bool)
        for (owner, element), value in where.items():
            if owner == index:
                np.testing.assert_equal(flat[element], value)
                width = code.block_size if code.poisons_blocks else 1
                spared[element // width * width : element // width * width + width] = False
        assert np.all(np.isfinite(flat[spared])), index


@every_row
def test_zeros_stay_zeros(name):
    row = ROWS[name]
    for kind in kinds(row):
        if row.combinator == "{}" or kind == kinds(row)[-1]:
            zeros = [[tf.zeros(shape, kind.dtype) for shape in SHAPES] for _ in range(kind.size)]
            with kernels(are_compiled=kind.is_compiled):
                steps = run(row.compressor, [zeros, zeros])
            for result in steps.results[-1]:
                kept = [leaf for leaf in tf.nest.flatten(result.states) if tf.as_dtype(leaf.dtype).is_floating]
                assert not any(np.any(exact(tensor)) for tensor in [*result.total, *result.sent, *kept]), kind


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.combinator in FULLY_TESTED])
@pytest.mark.parametrize(
    ("dtype", "magnitude"),
    [
        (tf.float32, 1e38),
        (tf.float32, 1e-38),
        (tf.float32, 1e-44),
        (tf.float64, 1e300),
        (tf.float64, 1e-300),
        (tf.float16, 6e-8),
        (tf.bfloat16, 1e38),
        (tf.bfloat16, 1e-40),
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_huge_and_tiny_gradients_have_finite_sums(name, dtype, magnitude):
    row = ROWS[name]
    signs = np.random.default_rng(0)
    if row.code.travels == tf.bfloat16 and magnitude > 3e38:
        pytest.skip("bf16 has the range of float32")
    for size in (2, 3) if dtype == tf.float32 else (3,):
        magnitude = min(magnitude, 0.9 * float(dtype.max) / (size * row.code.overshoot))
        gradients = [
            [tf.cast(tf.constant(magnitude * signs.choice([-1.0, 1.0], shape)), dtype) for shape in SHAPES]
            for _ in range(size)
        ]
        with kernels(are_compiled=dtype == tf.float32):
            results = reduce(row.compressor, gradients)
        for result in results:
            for leaf in [*result.total, *result.sent, *tf.nest.flatten(result.states)]:
                assert np.all(np.isfinite(exact(leaf)))


@every_code
def test_what_is_huge_keeps_its_sign(code):
    values = [3e38, -3e38, 1e38, -1e38]
    for total in totals(code.compressor, [[*values, 0.0]]):
        arrived = (total[:4] != 0) | (not code.sends_a_part)
        assert np.all(np.sign(total[:4])[arrived] == np.sign(values)[arrived])
        if code.block_size and not code.poisons_blocks:
            assert np.all(np.abs(total[:2]) >= 2.0**126 * 0.99)


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.combinator in FULLY_TESTED])
def test_gradients_without_elements_are_allowed(name):
    shapes = [(0,), (0, 3)]
    for size in (1, 2, 3):
        for result in reduce(ROWS[name].compressor, random_gradients(size, tf.float32, shapes)):
            assert [tuple(tensor.shape) for tensor in result.total] == shapes
            assert [tuple(tensor.shape) for tensor in result.sent] == shapes


@every_code
def test_infinities_of_both_signs_give_nan(code):
    for total in totals(code.compressor, [[np.inf, 0.0, 0.0, 0.0, 0.0], [-np.inf, 0.0, 0.0, 0.0, 0.0]]):
        assert np.isnan(total[0])
        assert code.poisons_blocks or code.poisons_tensors or not np.any(total[1:])


def check_that_finite_sums_stay_finite(code, values, dtype):
    values = np.asarray(values, np.float64)
    # A block code may take each element for the largest of its block.
    magnitudes = np.max(np.abs(values), axis=1, keepdims=True) if code.block_size else np.abs(values)
    expected = np.broadcast_to(np.sum(magnitudes, axis=0) <= largest_sum(code, dtype), values.shape[1])
    for total in totals(code.compressor, values, dtype):
        assert np.all(np.isfinite(total[expected])), (values, total)


def largest_sum(code, dtype):
    """Returns the largest sum of magnitudes that must stay finite."""
    dtypes = [dtype, code.travels] if code.travels and code.largest_sum < 1 else [dtype]
    return min(float(dtype.max) for dtype in dtypes) * (1 - 1e-6) * code.largest_sum


@every_code
@pytest.mark.parametrize("dtype", [tf.float32, tf.float64], ids=lambda dtype: dtype.name)
def test_the_largest_gradients_have_a_finite_sum(code, dtype):
    is_rounded_on_the_way = not code.block_size and not code.sends_a_part
    sizes = [1, 2, 3, 7, 33] if is_rounded_on_the_way else [1, 2, 3]
    for size in sizes:
        share = largest_sum(code, dtype) / size * (1 - 1e-6)
        for value in (share, -share, 65504.0, 65519.0, 65520.0, 1e30):
            with kernels(are_compiled=dtype == tf.float32):
                check_that_finite_sums_stay_finite(code, np.full((size, 5), value), dtype)


large_floats = st.floats(-(2.0**122), 2.0**122, width=32) | st.floats(-3e5, 3e5, width=32)


@every_code
@fixed_examples
@given(values=st.lists(st.tuples(*[large_floats] * 5), min_size=1, max_size=3))
def test_finite_gradients_have_a_finite_sum(code, values):
    check_that_finite_sums_stay_finite(code, values, tf.float32)


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if is_of_a_kind(row) and "by_" not in name])
def test_a_reduction_in_a_graph_gives_what_it_gives_op_by_op(name):
    """The trainer traces reductions; here among members that all send the same, which need not meet."""
    compressor = ROWS[name].compressor
    gradients = random_gradients(1, tf.float32)[0]
    states = [compressor.init(tf.TensorSpec(gradient.shape, gradient.dtype)) for gradient in gradients]
    states = tf.nest.map_structure(tf.convert_to_tensor, states)
    for group in (Echo(3), *([Echo(3, can_branch=False)] if "warm_up" in name else [])):

        def two_steps(gradients, states, group=group):
            first = compressor.reduce(gradients, states, group, name="gradients")
            second = compressor.reduce(gradients, first.states, group, name="gradients")
            return [*first.total, *second.total], second.states

        with kernels(are_compiled=False):
            plain = two_steps(gradients, states)
            traced = tf.function(two_steps, autograph=False)(gradients, states)
        for before, after in zip(tf.nest.flatten(plain), tf.nest.flatten(traced), strict=True):
            np.testing.assert_allclose(exact(before), exact(after), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.combinator in FULLY_TESTED])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_arrive_in_a_graph_too(name, value):
    """Comparisons with NaN may be turned round there. The gradient is large enough to be sampled."""
    compressor = ROWS[name].compressor
    gradient = np.random.default_rng(0).standard_normal([300, 400]).astype("float32")
    gradient[7, 11] = value
    state = tf.nest.map_structure(tf.convert_to_tensor, compressor.init(tf.TensorSpec(gradient.shape, tf.float32)))

    @tf.function(autograph=False)
    def reduce_in_graph(gradient, state):
        result = compressor.reduce([gradient], [state], Echo(2), name="gradient")
        return result.total[0], result.states

    with kernels(are_compiled=False):
        total, states = reduce_in_graph(tf.constant(gradient), state)
    assert not np.isfinite(exact(total)[7, 11])
    for leaf in tf.nest.flatten(states):
        assert np.all(np.isfinite(exact(leaf)))


class Echo:
    """A group whose members all do the same: this one knows what the others send."""

    rank = 0

    def __init__(self, size, *, can_branch=True):
        self.size, self.can_branch, self.can_exchange = size, can_branch, True

    def sum(self, tensors, *, name):
        return [tensor * self.size for tensor in tensors]

    def gather(self, tensor, *, name):
        return tf.concat([tensor] * self.size, axis=0)

    def gather_rows(self, tensor, *, name, counts=None):
        return self.gather(tensor, name=name)

    def exchange(self, tensor, *, name):
        return tf.stack([tensor[self.rank]] * self.size)
