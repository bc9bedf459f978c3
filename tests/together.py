"""What two workers do and return, for `integration/test_together.py`. Each check runs on both at once."""

import functools
import resource
import tempfile
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from trainings import compiled, dense, flat, mlp, regression

import tfdp

CHECKS: dict[str, Callable[[Any], dict[str, Any]]] = {}


def check(function):
    """Puts a function of a strategy into the table."""
    CHECKS[function.__name__] = function
    return function


def error_of(function, **values):
    """Returns the message of the ValueError that `function` ends with."""
    try:
        function()
    except ValueError as error:
        return {"message": str(error), **{name: value() for name, value in values.items()}}
    return {"message": "no error"}


@check
def start(strategy):
    keras.utils.set_random_seed(strategy.worker)
    with strategy.scope():
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16)])
    return {"weights": flat(model.weights)}


def masks_of(strategy):
    keras.utils.set_random_seed(1)
    with strategy.scope():
        dropout = keras.layers.Dropout(0.5)
        dropout.build((1, 32))

    @tf.function
    def masks():
        return strategy.run(lambda: dropout(tf.ones((1, 32)), training=True))

    return [np.array([one.numpy() for one in strategy.experimental_local_results(masks())]) for _ in range(2)]


@check
def masks(strategy):
    (first, following), (again, _) = masks_of(strategy), masks_of(strategy)
    return {"masks": first, "masks_of_next_step": following, "masks_again": again}


@check
def unseeded(strategy):
    keras.utils.set_random_seed(strategy.worker)

    @tf.function
    def numbers():
        return strategy.run(lambda: keras.random.normal((8,)))

    return {"numbers": np.array([one.numpy() for one in strategy.experimental_local_results(numbers())])}


class Noise(keras.layers.Layer):
    """Adds random numbers without a seed."""

    def call(self, x):
        return x + keras.random.normal(keras.ops.shape(x))


@check
def trained_with_noise(strategy):
    model = compiled(strategy, lambda: keras.Sequential([keras.Input((8,)), Noise(), dense(1, 1)]))
    model.fit(*regression(40), batch_size=8, epochs=1, shuffle=False, verbose=0)
    return {"weights": flat(model.weights)}


@check
def other_weights(strategy):
    model = compiled(strategy, lambda: keras.Sequential([keras.Input((8,)), dense(1, 1)]))
    kernel, bias = model.get_weights()
    model.set_weights([kernel, bias + strategy.worker])
    fit = functools.partial(model.fit, *regression(16), batch_size=8, epochs=1, shuffle=False, verbose=0)
    return error_of(fit, num_steps=lambda: int(model.optimizer.iterations))


class Stopping(keras.callbacks.Callback):
    """Wishes to stop on some workers, and counts batches."""

    def __init__(self, wishes, *, after_batch=None, after_epoch=None):
        super().__init__()
        self.wishes, self.after_batch, self.after_epoch = wishes, after_batch, after_epoch
        self.num_batches, self.saw_own_wish = 0, False

    def on_train_batch_end(self, batch, logs=None):
        self.num_batches += 1
        if self.wishes and self.num_batches == self.after_batch:
            self.model.stop_training = True
            self.saw_own_wish = self.model.stop_training

    def on_epoch_end(self, epoch, logs=None):
        if self.wishes and epoch == self.after_epoch:
            self.model.stop_training = True


def stopped(strategy, callback, *, as_list=False):
    model = compiled(strategy)
    callbacks = [callback]
    if as_list:
        callbacks = keras.callbacks.CallbackList(callbacks, model=model, epochs=3, add_history=True)
    model.fit(*regression(40), batch_size=8, epochs=3, shuffle=False, verbose=0, callbacks=callbacks)
    return {"num_batches": callback.num_batches, "saw_own_wish": callback.saw_own_wish}


@check
def stop_of_one_worker_within_an_epoch(strategy):
    return stopped(strategy, Stopping(strategy.worker == 1, after_batch=3))


@check
def stop_of_one_worker_at_an_epoch_s_end(strategy):
    return stopped(strategy, Stopping(strategy.worker == 1, after_epoch=0))


@check
def stop_of_all_workers(strategy):
    return stopped(strategy, Stopping(True, after_batch=3))


@check
def stop_of_a_list_of_callbacks(strategy):
    return stopped(strategy, Stopping(strategy.worker == 0, after_batch=3), as_list=True)


@check
def evaluate_on_chief(strategy):
    model = compiled(strategy)
    x, y = regression(16)
    call = functools.partial(model.evaluate, verbose=0) if strategy.worker == 0 else functools.partial(model.fit)
    return error_of(lambda: call(x, y))


@check
def other_epochs(strategy):
    model = compiled(strategy)
    return error_of(lambda: model.fit(*regression(16), epochs=1 + strategy.worker, verbose=0))


@check
def other_steps_per_execution(strategy):
    model = compiled(strategy, steps_per_execution=1 + strategy.worker)
    return error_of(lambda: model.fit(*regression(16), epochs=1, verbose=0))


@check
def predict_on_batch_on_chief(strategy):
    model = compiled(strategy)
    x, y = regression(16)
    call = functools.partial(model.predict_on_batch, x) if strategy.worker == 0 else functools.partial(model.fit, x, y)
    return error_of(call)


class ChangesWeights(keras.callbacks.Callback):
    """Sets weights at the end of each epoch."""

    def on_epoch_end(self, epoch, logs=None):
        self.model.set_weights([weight + 1.0 for weight in self.model.get_weights()])


@check
def changed_on_chief(strategy):
    model = compiled(strategy)
    callbacks = [ChangesWeights()] if strategy.worker == 0 else []
    model.fit(*regression(16), epochs=1, verbose=0, callbacks=callbacks)
    return {"weights": flat(model.weights)}


@check
def save_on_chief(strategy):
    layers = [keras.Input((8,)), dense(4, 1), keras.layers.BatchNormalization(), dense(1, 2)]
    model = compiled(strategy, lambda: keras.Sequential(layers), lambda: keras.optimizers.Adam(0.01))
    fit = functools.partial(model.fit, *regression(16), batch_size=8, epochs=1, shuffle=False, verbose=0)
    fit()
    results = {"weights": flat(model.weights)}
    if strategy.worker == 0:
        with tempfile.TemporaryDirectory() as folder:
            model.save(f"{folder}/model.keras")
            results["saved"] = flat(keras.models.load_model(f"{folder}/model.keras").weights)
    fit()
    return {**results, "after": flat(model.weights)}


@check
def numbers(strategy):
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([3], [0.1, 0.01])
    model = compiled(strategy, make_optimizer=lambda: keras.optimizers.SGD(schedule))
    iterations, rates = [], []

    def read(batch, logs):
        iterations.append(int(model.optimizer.iterations))
        rates.append(float(schedule(iterations[-1] - 1 + (iterations[-1] == 4))))

    callbacks = [keras.callbacks.LambdaCallback(on_train_batch_end=read)]
    model.fit(*regression(32), batch_size=8, epochs=1, shuffle=False, verbose=0, callbacks=callbacks)
    return {"iterations": iterations, "rates": rates}


@check
def throughput(strategy):
    monitor = tfdp.callbacks.ThroughputMonitor()
    model = compiled(strategy)
    data = regression(10)
    model.fit(*data, batch_size=4, epochs=3, shuffle=False, verbose=0, callbacks=[monitor], validation_data=data)
    names = ("examples", "steps", "seconds", "first_step_seconds", "examples_per_second", "steady_examples_per_second")
    return {name: getattr(monitor, name) for name in names}


@check
def memory(strategy):
    """How much larger 300 steps are than 100, whose last batches are uneven."""
    model = compiled(strategy, lambda: mlp(hidden=64))
    x, y = regression(37)
    sizes = []
    for epochs in (20, 40):
        model.fit(x, y, batch_size=8, epochs=epochs, verbose=0)
        sizes.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    return {"grown_mebibytes": sizes[1] - sizes[0]}


@check
def told_once(strategy):
    """Shows progress, and warns of data that have come to their end."""
    model = compiled(strategy)
    data = tf.data.Dataset.from_tensor_slices(regression(16)).batch(8)
    model.fit(data, epochs=2, steps_per_epoch=3, verbose=1)
    return {"done": 1}
