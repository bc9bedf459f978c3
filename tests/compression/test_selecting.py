"""Which compressor a variable gets."""

import re

import numpy as np
import pytest
import tensorflow as tf
from compressor_table import exact, kernels, reduce, run

from tfdp import compression
from tfdp.compression import bf16, by_name, by_shape, by_size, error_feedback, fp16, int8, none, warm_up


def spec(shape=(4, 4), path="dense/kernel", dtype=tf.float32):
    return tf.TensorSpec(shape, dtype, name=path)


def chosen(compressor, **of_spec):
    return repr(compressor.for_variable(spec(**of_spec)))


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((), "none()"),
        ((1023,), "none()"),
        ((31, 33), "none()"),
        ((1024,), "bf16()"),
        ((32, 32), "bf16()"),
        ((0, 9), "none()"),
    ],
)
def test_by_size_goes_by_the_number_of_elements(shape, expected):
    assert chosen(by_size(bf16()), shape=shape) == expected


def test_by_size_has_its_limit_and_its_alternative():
    compressor = by_size(bf16(), min_elements=5, otherwise=fp16())
    assert [chosen(compressor, shape=(size,)) for size in (4, 5)] == ["fp16()", "bf16()"]
    assert chosen(by_size(bf16(), min_elements=0), shape=(0,)) == "bf16()"


def test_by_shape_goes_by_the_number_of_axes():
    assert [chosen(by_shape(bf16()), shape=shape) for shape in [(), (5000,), (1, 1), (3, 3, 4, 8)]] == [
        "none()",
        "none()",
        "bf16()",
        "bf16()",
    ]
    compressor = by_shape(bf16(), min_rank=1, otherwise=fp16())
    assert [chosen(compressor, shape=shape) for shape in [(), (1,)]] == ["fp16()", "bf16()"]


def test_by_name_goes_by_the_first_pattern_that_is_found_in_the_path():
    compressor = by_name({"^embedding/": fp16(), "kernel$": bf16()})
    paths = {"embedding/kernel": "fp16()", "dense/kernel": "bf16()", "dense/bias": "none()", "kernel/scale": "none()"}
    assert {path: chosen(compressor, path=path) for path in paths} == paths
    assert chosen(by_name({"kernel": bf16()}, otherwise=fp16()), path="dense/bias") == "fp16()"
    assert chosen(by_name({"kernel": bf16()}), path=None) == "none()"
    assert chosen(by_name({re.compile("KERNEL", re.I): bf16()}), path="dense/kernel") == "bf16()"


def test_choices_can_stand_in_each_other():
    compressor = by_name({"kernel": by_shape(by_size(bf16(), min_elements=10))}, otherwise=fp16())
    assert chosen(compressor, shape=(5, 5)) == "bf16()"
    assert chosen(compressor, shape=(3, 3)) == chosen(compressor, shape=(25,)) == "none()"
    assert chosen(compressor, path="bias") == "fp16()"


@pytest.mark.parametrize(
    "compressor",
    [
        by_size(error_feedback(int8()), min_elements=10),
        error_feedback(by_size(int8(), min_elements=10)),
        error_feedback(by_size(int8(), min_elements=10), decay=0.5),
        warm_up(by_size(error_feedback(int8()), min_elements=10), steps=3),
        error_feedback(warm_up(by_size(int8(), min_elements=10), steps=3)),
        by_name({"dense": error_feedback(by_shape(int8()))}),
    ],
    ids=repr,
)
def test_variables_of_one_choice_get_the_same_object_and_share_buckets(compressor):
    large, small = (8, 8), (3,)
    one, another = (compressor.for_variable(spec(large, path)) for path in ("dense/kernel", "dense_1/kernel"))
    assert one is another
    assert not one.is_exact
    assert repr(one).count("by_") == 0
    one, another = (compressor.for_variable(spec(small, path)) for path in ("dense/bias", "dense_1/bias"))
    assert one is another
    assert one.is_exact
    assert one.init(spec(small)) == ()


@pytest.mark.parametrize(
    "compressor", [none(), bf16(), int8(), error_feedback(int8()), warm_up(int8(), steps=2)], ids=repr
)
def test_what_chooses_nothing_stays_what_it_is(compressor):
    assert compressor.for_variable(spec()) is compressor


def test_a_small_gradient_is_exact_without_state_where_error_feedback_is_around_the_choice():
    compressor = error_feedback(by_size(int8(), min_elements=10)).for_variable(spec((3,)))
    gradients = [[tf.constant([1.0, 1e-3, 1e-7])], [tf.constant([2.0, 1e-5, 1e-7])]]
    for result in reduce(compressor, gradients):
        np.testing.assert_array_equal(exact(result.total[0]), exact(gradients[0][0] + gradients[1][0]))
        assert result.states == [()]


def test_gradients_that_are_given_together_go_each_its_own_way():
    compressor = by_size(int8(), min_elements=10, otherwise=fp16())
    values = np.random.default_rng(0).standard_normal([20]).astype(np.float32)
    shapes = [slice(0, 20), slice(0, 3), slice(3, 20), slice(0, 9)]
    gradients = [tf.constant(values[part]) for part in shapes]
    with kernels(are_compiled=False):
        together = run(compressor, [[gradients] * 2]).results[0][0]
        for index, gradient in enumerate(gradients):
            alone = run(int8() if gradient.shape[0] >= 10 else fp16(), [[[gradient]] * 2]).results[0][0]
            np.testing.assert_allclose(exact(together.total[index]), exact(alone.total[0]), rtol=1e-6)


@pytest.mark.parametrize(
    ("compressor", "text"),
    [
        (by_size(bf16()), "by_size(bf16(), min_elements=1024)"),
        (by_size(bf16(), min_elements=7, otherwise=fp16()), "by_size(bf16(), min_elements=7, otherwise=fp16())"),
        (by_shape(bf16()), "by_shape(bf16(), min_rank=2)"),
        (by_name({"a": bf16(), "b": fp16()}), "by_name({'a': bf16(), 'b': fp16()})"),
    ],
)
def test_a_choice_shows_its_options(compressor, text):
    assert repr(compressor) == text


def test_sparse_values_travel_in_the_dtype_that_all_choices_agree_on():
    assert by_size(bf16()).sparse_dtype == tf.bfloat16
    assert by_size(bf16(), otherwise=fp16()).sparse_dtype is None
    assert by_size(int8()).sparse_dtype is None


# Arguments


@pytest.mark.parametrize(("choose", "option"), [(by_size, "min_elements"), (by_shape, "min_rank")])
@pytest.mark.parametrize(
    ("value", "error", "expectation"),
    [
        ("a", TypeError, "must be an integer"),
        (1.5, TypeError, "must be an integer"),
        (True, TypeError, "must be an integer"),
        (None, TypeError, "must be an integer"),
        (-1, ValueError, "must be at least 0"),
    ],
)
def test_a_limit_is_an_integer_of_at_least_zero(choose, option, value, error, expectation):
    with pytest.raises(error) as raised:
        choose(bf16(), **{option: value})
    assert str(raised.value) == f"`{option}` {expectation}. Received: {option}={value!r}."


@pytest.mark.parametrize(
    "build",
    [
        by_size,
        by_shape,
        lambda thing: by_name({"kernel": thing}),
        lambda thing: by_size(bf16(), otherwise=thing),
        lambda thing: by_shape(bf16(), otherwise=thing),
        lambda thing: by_name({"kernel": bf16()}, otherwise=thing),
    ],
)
@pytest.mark.parametrize("thing", ["bf16", bf16, 16])
def test_a_choice_is_between_compressors(build, thing):
    with pytest.raises(TypeError) as raised:
        build(thing)
    assert str(raised.value) == (
        f"A choice must be between instances of tfdp.compression.Compressor. Received: {thing!r}."
    )


@pytest.mark.parametrize("patterns", [{}, None, "kernel", [("kernel", bf16())]])
def test_patterns_are_a_dictionary_with_an_entry(patterns):
    with pytest.raises(TypeError) as raised:
        by_name(patterns)
    expectation = "`compressors` must be a dictionary of patterns to compressors, with one entry or more."
    assert str(raised.value) == f"{expectation} Received: {patterns!r}."


@pytest.mark.parametrize("pattern", ["(", "*", 3, b"kernel"])
def test_a_pattern_is_a_regular_expression(pattern):
    with pytest.raises(ValueError) as raised:
        by_name({pattern: bf16()})
    message = str(raised.value)
    assert message.startswith("The keys of `compressors` must be regular expressions: ")
    assert message.endswith(f"Received: {[pattern]}.")
    assert compression.by_name({"(a)": bf16()})
