"""Compressors by their names."""

import numpy as np
import pytest
import tensorflow as tf
from compressor_table import reduce

from tfdp import compression
from tfdp.compression import registry

# What a large kernel gets by each name.
OF_KERNELS = {
    "none": "none()",
    "bf16": "bf16()",
    "fp16": "fp16()",
    "e4m3": "error_feedback(e4m3(block_size=256))",
    "e5m2": "error_feedback(e5m2(block_size=256))",
    "int8": "error_feedback(int8(block_size=256))",
    "int4": "error_feedback(int4(block_size=256))",
    "sign": "error_feedback(sign(block_size=1024))",
    "qsgd": "qsgd(bits=4, block_size=256)",
    "tern_grad": "tern_grad(block_size=1024)",
    "natural": "natural(block_size=1024)",
    "topk": "error_feedback(top_k(k=0.01))",
    "topk:0.05": "error_feedback(top_k(k=0.05))",
    "topk:7": "error_feedback(top_k(k=7))",
    "randomk": "error_feedback(random_k(k=0.01))",
    "randomk:0.1": "error_feedback(random_k(k=0.1))",
    "dgc": "dgc(k=0.0018, momentum=0.9)",
    "dgc:0.01": "dgc(k=0.01, momentum=0.9)",
    "powersgd": "error_feedback(power_sgd(rank=4, min_compression_rate=2))",
    "powersgd:2": "error_feedback(power_sgd(rank=2, min_compression_rate=2))",
}
OTHERWISE = {"dgc": "with_momentum(0.9)", "dgc:0.01": "with_momentum(0.9)"}  # what biases and small kernels get
OF_ALL = ("none", "bf16", "fp16", "powersgd", "powersgd:2")  # powersgd chooses by shape itself


def test_every_name_is_tested_here():
    assert {name.partition(":")[0] for name in OF_KERNELS} == registry._NAMES.keys()


def test_every_name_that_takes_a_number_is_tested_with_one():
    with_numbers = {name.partition(":")[0] for name in OF_KERNELS if ":" in name}
    assert with_numbers == {name for name, known in registry._NAMES.items() if known.number}


@pytest.mark.parametrize("name", OF_KERNELS)
def test_a_name_gives_what_is_right_for_kernels(name):
    kernel = tf.TensorSpec((64, 64), tf.float32, name="dense/kernel")
    assert repr(compression.get(name).for_variable(kernel)) == OF_KERNELS[name]


@pytest.mark.parametrize("name", OF_KERNELS)
@pytest.mark.parametrize("shape", [(), (4096,), (31, 33)])
def test_a_name_leaves_biases_and_small_kernels_as_they_are(name, shape):
    expected = OF_KERNELS[name] if name in OF_ALL else OTHERWISE.get(name, "none()")
    assert repr(compression.get(name).for_variable(tf.TensorSpec(shape, tf.float32, name="x"))) == expected


@pytest.mark.parametrize("shape", [(), (4096,), (9, 64)])
def test_powersgd_leaves_biases_and_small_kernels_as_they_are_beside_the_others(shape):
    specs = [tf.TensorSpec((64, 64), tf.float32), tf.TensorSpec(shape, tf.float32)]
    chosen = {id(compressor): compressor for compressor in map(compression.get("powersgd").for_variable, specs)}
    (compressor,) = chosen.values()
    gradients = [tf.random.stateless_normal(spec.shape, [1, 2]) for spec in specs]
    (result,) = reduce(compressor, [gradients])
    assert np.array_equal(result.total[1], gradients[1])
    assert not np.allclose(result.total[0], gradients[0], atol=0.1)


@pytest.mark.parametrize("name", OF_KERNELS)
def test_a_compressor_shows_what_it_is_the_same_way_every_time(name):
    inner = OF_KERNELS[name]
    if name not in OF_ALL:
        otherwise = f", otherwise={OTHERWISE[name]}" if name in OTHERWISE else ""
        inner = f"by_size(by_shape({inner}, min_rank=2{otherwise}), min_elements=1024{otherwise})"
    assert repr(compression.get(name)) == repr(compression.get(name)) == inner


@pytest.mark.parametrize("name", OF_KERNELS)
def test_what_is_shown_can_be_written_in_a_program(name):
    shown = repr(compression.get(name))
    assert repr(eval(shown, {each: getattr(compression, each) for each in compression.__all__})) == shown


def test_no_compression_is_none():
    assert repr(compression.get(None)) == "none()"


def test_a_compressor_is_passed_through():
    compressor = compression.fp16()
    assert compression.get(compressor) is compressor


UNKNOWN = ["int3", "", "FP16", "bf16()", "TopK", " powersgd", "powersgd ", ":", ":4"]
WRONG_NUMBERS = ["powersgd:", "powersgd:x", "powersgd:0", "powersgd:-1", "powersgd: 4", "powersgd:4.0", "powersgd:4:4"]
WRONG_SHARES = ["topk:0", "topk:1.5", "topk:-1", "randomk:", "dgc:x"]
NO_NUMBERS = ["int8:4", "none:", "bf16:1", "powersgd:²", "powersgd:1_0", "powersgd:+4", "powersgd:4\n"]


@pytest.mark.parametrize("identifier", [*UNKNOWN, *WRONG_NUMBERS, *WRONG_SHARES, *NO_NUMBERS])
def test_a_wrong_name_or_number_is_refused_with_the_names_that_there_are(identifier):
    with pytest.raises(ValueError) as raised:
        compression.get(identifier)
    names = ", ".join(repr(name) for name in OF_KERNELS if ":" not in name)
    assert str(raised.value) == (
        f"`compression` must be one of {names}, some with a number as in 'topk:0.01', 'randomk:0.01', 'dgc:0.001', "
        f"'powersgd:4'. Received: {identifier!r}."
    )


@pytest.mark.parametrize(
    ("text", "number"),
    [("0.01", 0.01), (".5", 0.5), ("1.0", 1.0), ("1e-3", 0.001), ("2.5e-3", 0.0025), ("1", 1), ("100", 100)],
)
def test_digits_alone_are_a_count_and_others_a_share(text, number):
    parsed = registry._share_or_count(text)
    assert (parsed, type(parsed)) == (number, type(number))


@pytest.mark.parametrize(
    "text", ["", "0", "0.0", "1.5", "-1", "-0.1", " 1", "x", "nan", "inf", "1e3", "1.", "0e-3", "1,5"]
)
def test_what_is_neither_a_count_nor_a_share_is_none(text):
    assert registry._share_or_count(text) is None


@pytest.mark.parametrize("identifier", [16, True, ["bf16"], compression.bf16])
def test_what_is_neither_name_nor_compressor_is_refused(identifier):
    with pytest.raises(TypeError) as raised:
        compression.get(identifier)
    for name in registry._NAMES:
        assert repr(name) in str(raised.value)
    assert "tfdp.compression.Compressor" in str(raised.value)
    assert f"of type {type(identifier).__name__}" in str(raised.value)


@pytest.mark.parametrize(
    "build",
    [
        compression.threshold,
        compression.with_momentum,
        compression.top_k,
        lambda value: compression.dgc(momentum=value),
        lambda value: compression.dgc(clip_norm=value),
        lambda value: compression.error_feedback(compression.int8(), decay=value),
        lambda value: compression.power_sgd(min_compression_rate=value),
    ],
)
def test_options_are_shown_with_all_their_digits(build):
    """Workers compare what compressors show."""
    assert repr(build(0.12345678)) != repr(build(0.12345679))
    assert repr(build(0.5)) == repr(build(np.float64(0.5)))
