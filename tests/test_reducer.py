"""What the reducer asks of compressors beside reductions."""

from typing import ClassVar

import keras
import pytest
import tensorflow as tf

from tfdp.collectives import FlatRoute
from tfdp.compression import Compressor, by_size, dgc, error_feedback, none, power_sgd, threshold
from tfdp.reducer import GradientReducer
from tfdp.traffic import CountingGroup


class Training:
    """Traces steps of a group of two, of which this process has one member."""

    def __init__(self, compressor):
        self.group, self.agreements = CountingGroup(2), []
        self.reducer = GradientReducer(
            [FlatRoute(self.group)], compressor, 2**20, lambda *lines: self.agreements.append(lines)
        )
        self.variables = [keras.Variable(tf.ones([40, 30]), name="kernel"), keras.Variable(tf.ones([3]), name="bias")]

    def trace(self, optimizer, gradients=None):
        gradients = [tf.ones(variable.shape) for variable in self.variables] if gradients is None else gradients

        @tf.function(autograph=False)
        def step():
            return [tf.convert_to_tensor(g) for g in self.reducer.reduce(optimizer, gradients, self.variables)]

        step.get_concrete_function()
        self.optimizer = optimizer  # what belongs to one that is gone is forgotten


def test_an_optimizer_that_does_not_go_with_a_compressor_is_refused_before_anything_is_reduced():
    training = Training(by_size(dgc()))
    with pytest.raises(ValueError, match=r"^dgc\(k=0.001, momentum=0.9\) adds momentum .* Received: Adam with beta_1"):
        training.trace(keras.optimizers.Adam())
    assert training.group.sent_bytes == 0
    assert not training.agreements
    training.trace(keras.optimizers.SGD(0.1))
    assert training.group.sent_bytes > 0


def test_an_optimizer_is_asked_about_by_the_compressors_of_dense_gradients_alone():
    Training(by_size(dgc(), min_elements=2000)).trace(keras.optimizers.Adam())
    training = Training(by_size(dgc()))
    rows = tf.IndexedSlices(tf.ones([2, 30]), tf.constant([1, 2]), tf.constant([40, 30]))
    training.trace(keras.optimizers.Adam(), [rows, tf.ones([3])])


def test_bytes_that_follow_from_values_are_not_reported():
    training = Training(by_size(error_feedback(threshold(0.5))))
    training.trace(keras.optimizers.SGD(0.1))
    report = training.reducer.report()
    kernel, bias = report.variables
    assert kernel.wire_bytes is None
    assert bias.wire_bytes == (12, 12)
    assert (report.uncompressed_wire_bytes, report.wire_bytes) == (12, 12)
    line = next(line for line in str(report).splitlines() if line.startswith(kernel.path))
    assert line.split()[2:] == ["error_feedback(threshold(0.5))", "varies", "varies", "4,800"]


def test_bytes_of_sparse_gradients_are_not_reported():
    training = Training(none())
    rows = tf.IndexedSlices(tf.ones([2, 30]), tf.constant([1, 2]), tf.constant([40, 30]))
    training.trace(keras.optimizers.SGD(0.1), [rows, tf.ones([3])])
    assert training.reducer.report().variables[0].wire_bytes is None


def test_each_variable_is_reported_with_what_it_sends_itself():
    training = Training(error_feedback(power_sgd(2)))
    training.trace(keras.optimizers.SGD(0.1))
    kernel, bias = training.reducer.report().variables
    assert kernel.wire_bytes == (4800, 4 * 2 * (40 + 30))
    assert bias.wire_bytes == (12, 12)


def test_gradients_that_come_in_two_calls_are_all_reported():
    training = Training(none())
    variables, optimizer = training.variables, keras.optimizers.SGD(0.1)
    for part in (variables[:1], variables[1:], variables[1:]):
        training.variables = part
        training.trace(optimizer)
    assert [variable.wire_bytes for variable in training.reducer.report().variables] == [(4800, 4800), (12, 12)]


def test_random_numbers_do_not_depend_on_optimizers_before():
    """A training that goes on in a new process has no others."""

    class Named(Compressor):
        names: ClassVar = []

        def reduce(self, gradients, states, group, *, name):
            self.names.append(name)
            return none().reduce(gradients, states, group, name=name)

    training = Training(Named())
    for _ in range(2):
        training.trace(keras.optimizers.SGD(0.1))
    assert Named.names == ["bucket 0", "bucket 0"]
