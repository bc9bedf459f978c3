"""The compressor of examples/own_compressor.py does what docs/compression.md says of it."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tfdp.collectives import loopback
from tfdp.compression import by_shape, error_feedback
from tfdp.traffic import bytes_on_the_wire

REPOSITORY = Path(__file__).resolve().parent.parent
EXAMPLE = REPOSITORY / "examples" / "own_compressor.py"
STRIDE = 4
SHAPES = ((10, 3), (4, 5), (1, 2), (7,))


@pytest.fixture(scope="module")
def make():
    specification = importlib.util.spec_from_file_location("own_compressor", EXAMPLE)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module.RowsInTurn


def run(compressor, size, num_steps):
    """Returns for each member its gradients and its results, a list over steps each."""

    def member(group):
        generator = np.random.default_rng(group.rank)
        states = [compressor.init(tf.TensorSpec(shape, tf.float32)) for shape in SHAPES]
        gradients, results = [], []
        for step in range(num_steps):
            gradients.append([tf.constant(generator.standard_normal(shape), tf.float32) for shape in SHAPES])
            results.append(compressor.reduce(gradients[-1], states, group, name=f"step {step}"))
            states = results[-1].states
        return gradients, results

    return loopback(size, member)


def test_it_has_at_most_25_lines_and_stands_in_the_docs():
    text = EXAMPLE.read_text()
    assert len(text.splitlines()) <= 25
    assert text.partition('"""\n\n')[2].strip() in (REPOSITORY / "docs" / "compression.md").read_text()


def test_the_total_is_the_sum_of_what_the_members_sent(make):
    members = run(make(STRIDE), 3, STRIDE + 1)
    for step in range(STRIDE + 1):
        for index, shape in enumerate(SHAPES):
            sent = sum(results[step].sent[index] for _, results in members)
            for _, results in members:
                np.testing.assert_allclose(results[step].total[index], sent, rtol=1e-6)
                assert results[step].total[index].shape == shape


def test_every_row_has_its_turn(make):
    members = run(make(STRIDE), 1, STRIDE)
    for index, shape in enumerate(SHAPES):
        sent = sum(np.asarray(result.sent[index]) != 0 for result in members[0][1])
        assert np.all(sent >= 1) and sent.shape == shape


def test_with_error_feedback_totals_and_residuals_add_up_to_the_gradients(make):
    members = run(by_shape(error_feedback(make(STRIDE))), 2, 6)
    for index in range(len(SHAPES)):
        given = sum(gradient[index] for gradients, _ in members for gradient in gradients)
        delivered = sum(result.total[index] for result in members[0][1])
        states = [results[-1].states[index] for _, results in members]
        kept = sum(state["residual"] for state in states) if states[0] != () else 0.0
        np.testing.assert_allclose(delivered + kept, given, rtol=1e-5, atol=1e-5)


def test_the_report_knows_its_bytes(make):
    spec = tf.TensorSpec([100, 10], tf.float32)
    assert bytes_on_the_wire(error_feedback(make(STRIDE)), spec, 2) == 1000
