"""Compressors by their names."""

import pytest
import tensorflow as tf

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
}


def test_every_name_is_tested_here():
    assert OF_KERNELS.keys() == registry._BUILDERS.keys()


@pytest.mark.parametrize("name", OF_KERNELS)
def test_a_name_gives_what_is_right_for_kernels(name):
    kernel = tf.TensorSpec((64, 64), tf.float32, name="dense/kernel")
    assert repr(compression.get(name).for_variable(kernel)) == OF_KERNELS[name]


@pytest.mark.parametrize("name", OF_KERNELS)
@pytest.mark.parametrize("shape", [(), (4096,), (31, 33)])
def test_a_name_leaves_biases_and_small_kernels_as_they_are(name, shape):
    expected = OF_KERNELS[name] if name in ("none", "bf16", "fp16") else "none()"
    assert repr(compression.get(name).for_variable(tf.TensorSpec(shape, tf.float32, name="x"))) == expected


@pytest.mark.parametrize("name", OF_KERNELS)
def test_a_compressor_shows_what_it_is_the_same_way_every_time(name):
    inner = OF_KERNELS[name]
    if name not in ("none", "bf16", "fp16"):
        inner = f"by_size(by_shape({inner}, min_rank=2), min_elements=1024)"
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


@pytest.mark.parametrize("identifier", ["int3", "", "FP16", "bf16()"])
def test_an_unknown_name_is_refused_with_the_names_that_there_are(identifier):
    with pytest.raises(ValueError) as raised:
        compression.get(identifier)
    names = ", ".join(repr(name) for name in OF_KERNELS)
    assert str(raised.value) == f"`compression` must be one of {names}. Received: {identifier!r}."


@pytest.mark.parametrize("identifier", [16, True, ["bf16"], compression.bf16])
def test_what_is_neither_name_nor_compressor_is_refused(identifier):
    with pytest.raises(TypeError) as raised:
        compression.get(identifier)
    for name in OF_KERNELS:
        assert repr(name) in str(raised.value)
    assert "tfdp.compression.Compressor" in str(raised.value)
    assert f"of type {type(identifier).__name__}" in str(raised.value)
