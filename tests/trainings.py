"""Small trainings that give the same arrays on one device and under every strategy.

Each is a function of a strategy, or of None for one device. It returns named arrays, and runs the same program on every
worker. `TRAININGS` is the table; a new training joins by a decorated function.
"""

import contextlib
import functools
import tempfile
import traceback
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
import quick_iterators
import tensorflow as tf

import tfdp

quick_iterators.use()

BATCH_SIZE = 32
NUM_BATCHES = 5
NUM_ROWS = BATCH_SIZE * NUM_BATCHES
EXACT, SGD, ADAM = 0.0, 1e-5, 1e-4


class Training(NamedTuple):
    """A training, and how far an array may be from that of one device, relative to its largest element."""

    function: Callable[[Any], dict[str, Any]]
    tolerance: float


TRAININGS: dict[str, Training] = {}


def training(*, tolerance: float = SGD) -> Callable[[Callable[[Any], dict[str, Any]]], Any]:
    """Puts a function into the table."""

    def add(function: Callable[[Any], dict[str, Any]]) -> Any:
        TRAININGS[function.__name__] = Training(function, tolerance)
        return function

    return add


@functools.cache
def on_one_device(name: str) -> dict[str, np.ndarray]:
    """Returns the arrays of a training without a strategy."""
    return as_arrays(TRAININGS[name].function(None))


def differences(expected: dict[str, np.ndarray], received: dict[str, np.ndarray], tolerance: float) -> list[str]:
    """Returns a sentence for each array that is further from what is expected than `tolerance` times its largest."""
    complaints = [f"{name} is there on one side only" for name in sorted(expected.keys() ^ received.keys())]
    for name in sorted(expected.keys() & received.keys()):
        one, other = expected[name].astype(np.complex128), received[name].astype(np.complex128)
        if one.shape != other.shape:
            complaints.append(f"{name} has shape {other.shape} instead of {one.shape}")
            continue
        error, bound = (np.max(np.abs(values), initial=0.0) for values in (one - other, tolerance * one))
        if not error <= bound:
            complaints.append(
                f"{name} is off by {error:.3g}, more than {bound:.3g}: {other.ravel()[:4]} for {one.ravel()[:4]}"
            )
    return complaints


def record(folder, name: str, function: Callable[[], dict[str, Any]]) -> None:
    """Writes the arrays that `function` returns to `folder`, or the error that it ends with."""
    try:
        arrays = as_arrays(function())
    except Exception:
        (folder / f"{name}.error").write_text(traceback.format_exc())
        return
    np.savez(folder / f"{name}.unfinished.npz", **arrays)
    (folder / f"{name}.unfinished.npz").rename(folder / f"{name}.npz")


def record_all(folder, strategy, names=None) -> None:
    """Records the named trainings, or all of the table, under `strategy`."""
    for name in names or TRAININGS:
        record(folder, name, functools.partial(TRAININGS[name].function, strategy))


def recorded(folder, name: str) -> dict[str, np.ndarray]:
    """Returns what `record` has written.

    Raises:
        AssertionError: the function ended with an error, or the process did not come so far.
    """
    if (folder / f"{name}.npz").exists():
        with np.load(folder / f"{name}.npz") as arrays:
            return dict(arrays)
    error = folder / f"{name}.error"
    raise AssertionError(error.read_text() if error.exists() else f"{name!r} was not run to its end in {folder.name}")


def assert_equals_one_device(name: str, received: dict[str, np.ndarray]) -> None:
    complaints = differences(on_one_device(name), received, TRAININGS[name].tolerance)
    assert not complaints, "\n".join(complaints)


def as_arrays(values: dict[str, Any]) -> dict[str, np.ndarray]:
    return {name: np.asarray(value) for name, value in values.items()}


# What the trainings share


def scope(strategy):
    return contextlib.nullcontext() if strategy is None else strategy.scope()


def regression(num_rows=NUM_ROWS, num_columns=8, seed=0):
    """Returns x [num_rows, num_columns] and y [num_rows, 1]."""
    generator = np.random.default_rng(seed)
    x = generator.standard_normal((num_rows, num_columns)).astype("float32")
    weights = generator.standard_normal((num_columns, 1))
    return x, (np.tanh(x @ weights) + 0.1 * generator.standard_normal((num_rows, 1))).astype("float32")


def dense(units, seed, **options):
    """A layer with the same start on every device."""
    return keras.layers.Dense(units, kernel_initializer=keras.initializers.GlorotUniform(seed=seed), **options)


def mlp(num_columns=8, hidden=16):
    return keras.Sequential([keras.Input((num_columns,)), dense(hidden, 1, activation="tanh"), dense(1, 2)])


def compiled(strategy, make_model=mlp, make_optimizer=lambda: keras.optimizers.SGD(0.05, momentum=0.9), **options):
    with scope(strategy):
        model = make_model()
        model.compile(make_optimizer(), **{"loss": "mse", "metrics": ["mae"], **options})
    return model


def fit(model, x, y, epochs=4, **options):
    return model.fit(x, y, batch_size=BATCH_SIZE, epochs=epochs, shuffle=False, verbose=0, **options)


def copies(variable):
    """Returns the values of a variable on each device of this process."""
    variable = variable.value if isinstance(variable, keras.Variable) else variable
    values = getattr(variable, "_values", None) or (variable,)
    return [np.asarray(value.read_value()) for value in values]


def copies_that_differ(variables):
    """Returns how many of the variables have copies that are not bitwise equal, where all copies should be."""
    mirrored = [v for v in variables if "SyncOnRead" not in type(getattr(v, "value", v)).__name__]
    return sum(len({copy.tobytes() for copy in copies(variable)}) > 1 for variable in mirrored)


def flat(variables):
    return np.concatenate([np.ravel(np.asarray(variable)).astype("float64") for variable in variables])


def outcome(model, history=None, *optimizers, **arrays):
    """Returns what most trainings compare: weights, equal copies, and the losses and metrics of each epoch."""
    optimizers = optimizers or [model.optimizer]
    everything = [*model.variables, *(variable for optimizer in optimizers for variable in optimizer.variables)]
    epochs = {} if history is None else {f"history_{name}": values for name, values in history.history.items()}
    return {
        "weights": flat(model.weights),
        "copies_that_differ": copies_that_differ(everything),
        **epochs,
        **arrays,
    }


# fit, evaluate and predict


@training()
def sgd_with_momentum(strategy):
    x, y = regression()
    model = compiled(strategy)
    history = fit(model, x, y)
    return outcome(
        model,
        history,
        evaluated=model.evaluate(x[:64], y[:64], batch_size=BATCH_SIZE, verbose=0),
        predicted=model.predict(x, batch_size=BATCH_SIZE, verbose=0),
    )


@training(tolerance=ADAM)
def adam(strategy):
    x, y = regression()
    model = compiled(strategy, make_optimizer=lambda: keras.optimizers.Adam(0.01))
    return outcome(model, fit(model, x, y), evaluated=model.evaluate(x, y, batch_size=BATCH_SIZE, verbose=0))


@training()
def predict_of_any_size(strategy):
    x, _ = regression()
    model = compiled(strategy)
    sizes = (1, 7, 17, 33)
    return {f"{size}_rows": model.predict(x[:size], batch_size=16, verbose=0) for size in sizes}


@training()
def data_set_with_repeat_and_steps_per_epoch(strategy):
    model = compiled(strategy)
    data = tf.data.Dataset.from_tensor_slices(regression()).batch(BATCH_SIZE, drop_remainder=True).repeat()
    return outcome(model, model.fit(data, epochs=2, steps_per_epoch=7, shuffle=False, verbose=0))


@training()
def validation_data_and_callbacks(strategy):
    x, y = regression()
    model = compiled(strategy)
    batch_losses, epochs_begun = [], []
    callbacks = [
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5 if epoch else rate),
        keras.callbacks.LambdaCallback(
            on_epoch_begin=lambda epoch, logs: epochs_begun.append(epoch),
            on_train_batch_end=lambda batch, logs: batch_losses.append(logs["loss"]),
        ),
        keras.callbacks.EarlyStopping(monitor="val_loss", patience=0, min_delta=10.0),
    ]
    history = fit(model, x, y, validation_data=(x[:64], y[:64]), validation_batch_size=BATCH_SIZE, callbacks=callbacks)
    rate = np.asarray(model.optimizer.learning_rate)
    return outcome(model, history, batch_losses=batch_losses, epochs_begun=epochs_begun, rate=rate)


# Kinds of models


@training()
def unbuilt_sequential(strategy):
    model = compiled(strategy, lambda: keras.Sequential([dense(16, 1, activation="relu"), dense(1, 2)]))
    return outcome(model, fit(model, *regression(), epochs=2))


def two_inputs_and_two_outputs():
    left, right = keras.Input((8,), name="left"), keras.Input((3,), name="right")
    both = keras.layers.Concatenate()([dense(8, 1, activation="tanh")(left), dense(4, 2)(right)])
    return keras.Model(
        {"left": left, "right": right}, [dense(1, 3, name="value")(both), dense(3, 4, name="kind")(both)]
    )


@training()
def functional(strategy):
    x, y = regression()
    inputs = {"left": x, "right": regression(num_columns=3, seed=1)[0]}
    targets = [y, (np.arange(NUM_ROWS) % 3).astype("int32")]
    losses = ["mse", keras.losses.SparseCategoricalCrossentropy(from_logits=True)]
    model = compiled(strategy, two_inputs_and_two_outputs, loss=losses, metrics=[["mae"], ["accuracy"]])
    history = fit(model, inputs, targets, epochs=2)
    value, kind = model.predict(inputs, batch_size=BATCH_SIZE, verbose=0)
    return outcome(model, history, predicted_value=value, predicted_kind=kind)


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden, self.last = dense(16, 1, activation="tanh"), dense(1, 2)

    def call(self, x, training=False):
        return self.last(self.hidden(x))


@training()
def subclassed(strategy):
    model = compiled(strategy, Subclassed)
    return outcome(model, fit(model, *regression(), epochs=2))


class CustomTrainStep(Subclassed):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=y, y_pred=self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        for metric in self.metrics:
            if metric.name != "loss":
                metric.update_state(y, self(x))
        return {metric.name: metric.result() for metric in self.metrics if metric.name != "loss"}


@training()
def custom_train_step(strategy):
    model = compiled(strategy, CustomTrainStep)
    return outcome(model, fit(model, *regression(), epochs=2))


class TwoOptimizers(keras.Model):
    """Two networks with variables of the same shapes, which train against each other."""

    def __init__(self):
        super().__init__()
        self.first, self.second = dense(8, 1), dense(8, 2)
        self.gap = keras.metrics.Mean(name="gap")

    def build(self, shape):
        self.first.build(shape)
        self.second.build(shape)

    def call(self, x):
        return self.first(x) - self.second(x)

    def compile(self, first_optimizer, second_optimizer):
        super().compile()
        self.first_optimizer, self.second_optimizer = first_optimizer, second_optimizer

    def train_step(self, data):
        x, y = data
        with tf.GradientTape(persistent=True) as tape:
            gap = tf.reduce_mean(tf.square(self(x) - y), axis=-1)
            loss = tf.reduce_sum(gap) / BATCH_SIZE
        for network, optimizer in ((self.first, self.first_optimizer), (self.second, self.second_optimizer)):
            gradients = tape.gradient(loss, network.trainable_variables)
            optimizer.apply(gradients, network.trainable_variables)
        self.gap.update_state(gap)
        return {"gap": self.gap.result()}


@training(tolerance=ADAM)
def two_optimizers(strategy):
    with scope(strategy):
        model = TwoOptimizers()
        model.build((None, 8))
        first, second = keras.optimizers.SGD(0.05), keras.optimizers.Adam(0.01)
        model.compile(first, second)
    x, _ = regression()
    history = fit(model, x, x, epochs=2)
    return outcome(model, history, first, second)


@training()
def three_models_one_after_another(strategy):
    weights = []
    for num_columns, hidden in ((3, 5), (8, 16), (5, 3)):
        model = compiled(strategy, lambda shape=(num_columns, hidden): mlp(*shape))
        fit(model, *regression(num_columns=num_columns), epochs=1)
        weights.append(flat(model.weights))
    return {"weights": np.concatenate(weights)}


@training()
def two_models_in_turn(strategy):
    models = [compiled(strategy, mlp), compiled(strategy, mlp)]
    for _ in range(2):
        for seed, model in enumerate(models):
            fit(model, *regression(seed=seed), epochs=1)
    return {"weights": np.concatenate([flat(model.weights) for model in models])}


def with_batch_normalization():
    normalization = keras.layers.BatchNormalization(synchronized=True, momentum=0.9)
    return keras.Sequential([keras.Input((8,)), dense(16, 1), normalization, dense(1, 2)])


@training(tolerance=ADAM)
def synchronized_batch_normalization(strategy):
    x, y = regression()
    model = compiled(strategy, with_batch_normalization)
    history = fit(model, x, y)
    return outcome(model, history, evaluated=model.evaluate(x, y, batch_size=BATCH_SIZE, verbose=0))


# How gradients are taken and used


@training()
def steps_per_execution(strategy):
    x, y = regression(BATCH_SIZE * 6)
    model = compiled(strategy, steps_per_execution=3)
    history = fit(model, x, y, epochs=3)
    return outcome(model, history, evaluated=model.evaluate(x, y, batch_size=BATCH_SIZE, verbose=0))


@training()
def run_eagerly(strategy):
    x, y = regression(BATCH_SIZE * 2)
    model = compiled(strategy, run_eagerly=True)
    return outcome(model, fit(model, x, y, epochs=1))


def clipped(**options):
    return lambda strategy: outcome(
        model := compiled(strategy, make_optimizer=lambda: keras.optimizers.SGD(0.5, **options)),
        fit(model, *regression(), epochs=2),
    )


TRAININGS["clipnorm"] = Training(clipped(clipnorm=0.05), SGD)
TRAININGS["global_clipnorm"] = Training(clipped(global_clipnorm=0.1), SGD)
TRAININGS["clipvalue"] = Training(clipped(clipvalue=0.02), SGD)


def with_embedding():
    words = keras.layers.Embedding(50, 6, embeddings_initializer=keras.initializers.RandomNormal(seed=1))
    return keras.Sequential([keras.Input((4,), dtype="int32"), words, keras.layers.Flatten(), dense(1, 2)])


def words_that_repeat():
    """Returns rows of words, few enough for each to be there several times within and across replicas."""
    return np.random.default_rng(0).integers(0, 9, (NUM_ROWS, 4)).astype("int32"), regression()[1]


@training()
def embedding(strategy):
    model = compiled(strategy, with_embedding)
    return outcome(model, fit(model, *words_that_repeat(), epochs=2))


@training(tolerance=ADAM)
def embedding_with_adam_and_clipnorm(strategy):
    model = compiled(strategy, with_embedding, lambda: keras.optimizers.Adam(0.01, clipnorm=0.1))
    return outcome(model, fit(model, *words_that_repeat(), epochs=2))


class Counting(keras.layers.Layer):
    """Multiplies by a weight, and counts its calls in an integer variable."""

    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones")
        self.count = self.add_weight(
            shape=(), initializer="zeros", dtype="int32", trainable=False, aggregation="only_first_replica"
        )

    def call(self, x):
        self.count.assign_add(1)
        return x * self.scale


@training()
def integer_variable(strategy):
    model = compiled(strategy, lambda: keras.Sequential([keras.Input((8,)), Counting(), dense(1, 2)]))
    history = fit(model, *regression(), epochs=2)
    return outcome(model, history, count=np.asarray(model.layers[0].count))


# Custom loops


def custom_loop(strategy, make_variables, loss_of_rows, make_optimizer, *, in_function=True):
    """Trains variables by `strategy.run` and `apply_gradients`; the loss is a sum over rows, divided by all rows."""
    with scope(strategy):
        variables, optimizer = make_variables(), make_optimizer()

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(loss_of_rows(variables, x, y)) / BATCH_SIZE
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    def step_of_all(batch):
        if strategy is None:
            return step(*batch)
        return strategy.reduce("SUM", strategy.run(step, args=batch), axis=None)

    data = tf.data.Dataset.from_tensor_slices(regression()).batch(BATCH_SIZE)
    batches = data if strategy is None else strategy.experimental_distribute_dataset(data)
    train = tf.function(step_of_all) if in_function else step_of_all
    losses = [float(train(batch)) for batch in batches]
    return {
        "weights": np.concatenate([np.ravel(np.asarray(variable)) for variable in variables]),
        "losses": losses,
        "copies_that_differ": copies_that_differ(variables),
    }


def linear_variables():
    return [tf.Variable(tf.ones([8, 1]), name="kernel"), tf.Variable(0.5, name="bias")]


def squared_error(variables, x, y):
    return tf.square(x @ variables[0] + variables[1] - y)


def sgd():
    return keras.optimizers.SGD(0.05, momentum=0.9)


@training()
def custom_loop_in_a_function(strategy):
    return custom_loop(strategy, linear_variables, squared_error, sgd)


@training()
def custom_loop_run_eagerly(strategy):
    return custom_loop(strategy, linear_variables, squared_error, sgd, in_function=False)


@training()
def complex_and_double_variables(strategy):
    def make_variables():
        return [
            tf.Variable(tf.ones([8, 1], tf.complex64), name="complex"),
            tf.Variable(tf.ones([8, 1], tf.float64), name="double"),
        ]

    def loss_of_rows(variables, x, y):
        turned = tf.cast(x, tf.complex64) @ variables[0] * tf.constant(0.6 + 0.8j, tf.complex64)
        doubled = tf.cast(tf.cast(x, tf.float64) @ variables[1], tf.float32)
        return tf.square(tf.math.real(turned) + tf.math.imag(turned) ** 2 + doubled - y)

    # Keras's momentum has the dtype of its variable: plain steps leave the complex learning rate to TensorFlow.
    return custom_loop(strategy, make_variables, loss_of_rows, lambda: keras.optimizers.SGD(0.001))


@training()
def variables_of_every_dtype(strategy):
    dtypes = [
        tf.bool,
        tf.int8,
        tf.uint8,
        tf.int16,
        tf.int32,
        tf.int64,
        tf.float16,
        tf.bfloat16,
        tf.float64,
        tf.complex128,
    ]
    with scope(strategy):
        variables = [tf.Variable(tf.cast([0, 1, 2], dtype), trainable=False) for dtype in dtypes]
    return {variable.dtype.name: tf.cast(variable.read_value(), tf.complex128) for variable in variables}


@training(tolerance=0.02)
def bfloat16_layer(strategy):
    model = compiled(strategy, lambda: keras.Sequential([keras.Input((8,)), dense(1, 1, dtype="bfloat16")]))
    return {"weights": outcome(model, fit(model, *regression(), epochs=1))["weights"]}


@training()
def reduce_of_plain_numbers(strategy):
    """What Keras's callers may hand to `reduce`: the same Python number on every replica, alone and in nests."""
    value = {"loss": 3.5, "counts": (2, 7.0)}
    mean = value if strategy is None else strategy.reduce("MEAN", value, axis=None)
    alone = 3.5 if strategy is None else strategy.reduce("MEAN", 3.5, axis=0)
    return {"loss": mean["loss"], "first": mean["counts"][0], "second": mean["counts"][1], "alone": alone}


# Batches that do not divide by the replicas, and how their rows are weighted

NUM_UNEVEN_ROWS = BATCH_SIZE + 9


def at_an_uneven_end(make_model=mlp, make_optimizer=sgd, **options):
    """Trains with a last batch of 9 rows."""

    def train(strategy):
        model = compiled(strategy, make_model, make_optimizer, **options)
        return outcome(model, fit(model, *regression(NUM_UNEVEN_ROWS), epochs=2))

    return train


@training()
def uneven_batches_of_all_kinds(strategy):
    """A first, an inner and a last batch that do not divide, and then fewer rows than replicas."""
    x, y = regression(10)
    model = compiled(strategy, weighted_metrics=["mse"])
    history = model.fit(x, y, batch_size=5, epochs=2, shuffle=False, verbose=0)
    one = model.fit(x[:1], y[:1], shuffle=False, verbose=0)
    evaluated = model.evaluate(x, y, batch_size=7, verbose=0)
    return outcome(model, history, loss_of_one=one.history["loss"], evaluated=evaluated)


@training()
def steps_per_execution_with_uneven_batches(strategy):
    x, y = regression(3 * BATCH_SIZE + 9)
    model = compiled(strategy, steps_per_execution=2)
    history = fit(model, x, y, epochs=2)
    predicted = model.predict(x, batch_size=BATCH_SIZE, verbose=0)
    return outcome(model, history, predicted=predicted, evaluated=model.evaluate(x, y, batch_size=16, verbose=0))


@training()
def evaluate_uneven_rows_with_several_metrics(strategy):
    x, y = regression(NUM_UNEVEN_ROWS)
    with scope(strategy):  # a metric may make its variables at once
        metrics = [keras.metrics.R2Score(), keras.metrics.RootMeanSquaredError(), "mae"]
    model = compiled(strategy, metrics=metrics)
    return {f"{size}_rows": model.evaluate(x[:size], y[:size], batch_size=16, verbose=0) for size in (33, 41)}


@training()
def validation_split_with_uneven_batches(strategy):
    model = compiled(strategy)
    return outcome(model, fit(model, *regression(91), epochs=2, validation_split=0.3))


@training()
def train_test_and_predict_on_batch(strategy):
    x, y = regression(13)
    model = compiled(strategy)
    weights = np.linspace(0, 2, 13, dtype="float32")
    trained = [model.train_on_batch(x, y), model.train_on_batch(x[:8], y[:8]), model.train_on_batch(x, y, weights)]
    return outcome(model, trained=trained, tested=model.test_on_batch(x, y), predicted=model.predict_on_batch(x))


@training()
def sample_weights(strategy):
    x, y = regression(NUM_UNEVEN_ROWS)
    model = compiled(strategy, weighted_metrics=["mae"])
    weights = np.random.default_rng(5).uniform(0, 3, len(x)).astype("float32")
    weights[:8] = 0
    return outcome(model, fit(model, x, y, epochs=2, sample_weight=weights))


@training()
def mean_with_sample_weight(strategy):
    x, y = regression(NUM_UNEVEN_ROWS)
    model = compiled(strategy, loss=keras.losses.MeanSquaredError(reduction="mean_with_sample_weight"))
    weights = np.random.default_rng(5).uniform(0, 3, len(x)).astype("float32")
    weights[:8] *= 20
    return outcome(model, fit(model, x, y, epochs=2, sample_weight=weights))


def without_mean(strategy, reduction, rows):
    loss = keras.losses.MeanSquaredError(reduction=reduction)
    model = compiled(strategy, make_optimizer=lambda: keras.optimizers.SGD(0.001), loss=loss)
    return outcome(model, fit(model, *regression(rows), epochs=2))


@training()
def losses_that_are_summed(strategy):
    return without_mean(strategy, "sum", NUM_UNEVEN_ROWS)


@training()
def losses_that_are_not_reduced(strategy):
    """In even batches: Keras counts each by the square of its rows."""
    return without_mean(strategy, None, NUM_ROWS)


@training()
def class_weights(strategy):
    x, _ = regression(NUM_UNEVEN_ROWS)
    model = compiled(
        strategy,
        lambda: keras.Sequential([keras.Input((8,)), dense(3, 1)]),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    kinds = np.sort(np.arange(len(x)) % 3).astype("int32")
    return outcome(model, fit(model, x, kinds, epochs=2, class_weight={0: 0.5, 1: 1.0, 2: 4.0}))


@training()
def masked_steps(strategy):
    def make_model():
        words = keras.layers.Embedding(
            50, 6, mask_zero=True, embeddings_initializer=keras.initializers.RandomNormal(seed=1)
        )
        return keras.Sequential([keras.Input((5,), dtype="int32"), words, dense(1, 2)])

    generator = np.random.default_rng(0)
    lengths = np.sort(generator.integers(0, 6, NUM_UNEVEN_ROWS))[:, np.newaxis]
    x = np.where(np.arange(5) < lengths, generator.integers(1, 50, (NUM_UNEVEN_ROWS, 5)), 0).astype("int32")
    y = generator.standard_normal((NUM_UNEVEN_ROWS, 5, 1)).astype("float32")
    model = compiled(strategy, make_model, weighted_metrics=["mae"])
    return outcome(model, fit(model, x, y, epochs=2))


def mean_of_squares(y, predicted):
    return tf.reduce_mean(tf.square(y - predicted))


TRAININGS["loss_that_returns_a_scalar"] = Training(at_an_uneven_end(loss=mean_of_squares), SGD)


class AddsLoss(keras.layers.Layer):
    def call(self, x):
        self.add_loss(0.1 * keras.ops.mean(keras.ops.square(x)))
        return x


def that_adds_a_loss():
    return keras.Sequential([keras.Input((8,)), dense(16, 1, activation="tanh"), AddsLoss(), dense(1, 2)])


TRAININGS["add_loss"] = Training(at_an_uneven_end(that_adds_a_loss), SGD)


def with_options_of_a_layer(**options):
    return lambda: keras.Sequential([keras.Input((8,)), dense(16, 1, activation="tanh", **options), dense(1, 2)])


TRAININGS["l2_regularizer"] = Training(
    at_an_uneven_end(with_options_of_a_layer(kernel_regularizer=keras.regularizers.L2(0.05))), SGD
)
TRAININGS["activity_regularizer"] = Training(
    lambda strategy: outcome(
        model := compiled(strategy, with_options_of_a_layer(activity_regularizer=keras.regularizers.L2(0.05))),
        fit(model, *regression(), epochs=2),
    ),
    SGD,
)


@training(tolerance=ADAM)
def synchronized_batch_normalization_with_uneven_batches(strategy):
    x, y = regression(BATCH_SIZE + 1)
    model = compiled(strategy, with_batch_normalization)
    history = fit(model, x, y, epochs=2)
    return outcome(model, history, evaluated=model.evaluate(x, y, batch_size=BATCH_SIZE, verbose=0))


class CountsTraces(Subclassed):
    num_traces = 0

    def call(self, x, training=False):
        self.num_traces += 1
        return super().call(x, training=training)


@training()
def no_retracing_from_epoch_to_epoch(strategy):
    x, y = regression(10)
    model = compiled(strategy, CountsTraces)
    model.fit(x, y, batch_size=4, shuffle=False, verbose=0)
    before = model.num_traces
    history = model.fit(x, y, batch_size=4, epochs=4, shuffle=False, verbose=0)
    return outcome(model, history, more_traces=model.num_traces - before)


# What optimizers do with gradients


def trained_by(optimizer, **options):
    return Training(at_an_uneven_end(make_optimizer=functools.partial(optimizer, **options)), ADAM)


TRAININGS["sgd_with_weight_decay"] = trained_by(keras.optimizers.SGD, learning_rate=0.05, weight_decay=0.1)
TRAININGS["adamw"] = trained_by(keras.optimizers.AdamW, learning_rate=0.01, weight_decay=0.1)
TRAININGS["moving_average"] = trained_by(keras.optimizers.SGD, learning_rate=0.05, use_ema=True, ema_momentum=0.9)
TRAININGS["moving_average_that_overwrites"] = trained_by(
    keras.optimizers.SGD, learning_rate=0.05, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=3
)
TRAININGS["constraint"] = Training(
    at_an_uneven_end(with_options_of_a_layer(kernel_constraint=keras.constraints.MaxNorm(0.5))), SGD
)


def accumulating(make_model, make_data, **options):
    """Trains with an update every two batches, and one batch left over in the end."""

    def train(strategy):
        optimizer = functools.partial(keras.optimizers.SGD, 0.05, gradient_accumulation_steps=2, **options)
        model = compiled(strategy, make_model, optimizer)
        history = fit(model, *make_data(), epochs=3)
        # What replicas have accumulated is their own.
        return outcome(model, history, copies_that_differ=copies_that_differ(model.variables))

    return train


TRAININGS["gradient_accumulation"] = Training(accumulating(mlp, regression, momentum=0.9), SGD)
TRAININGS["gradient_accumulation_with_uneven_batches"] = Training(
    accumulating(mlp, functools.partial(regression, 2 * BATCH_SIZE + 9), global_clipnorm=0.1), SGD
)
TRAININGS["gradient_accumulation_of_an_embedding"] = Training(accumulating(with_embedding, words_that_repeat), SGD)


def frozen_first_layer():
    model = mlp()
    model.layers[0].trainable = False
    return model


TRAININGS["frozen_layer"] = Training(at_an_uneven_end(frozen_first_layer), SGD)


class WithUnused(keras.layers.Layer):
    """Multiplies by one weight, and has another without a gradient."""

    def build(self, shape):
        self.used = self.add_weight(shape=(), initializer="ones")
        self.unused = self.add_weight(shape=(3,), initializer="ones")

    def call(self, x):
        return x * self.used


@training()
def unused_variable(strategy):
    model = compiled(
        strategy,
        lambda: keras.Sequential([keras.Input((1,)), WithUnused()]),
        lambda: keras.optimizers.SGD(0.1),
    )
    ones = np.ones((4, 1), "float32")
    return outcome(model, model.fit(ones, 0 * ones, batch_size=4, verbose=0))


@training()
def nothing_to_train(strategy):
    model = compiled(strategy, lambda: keras.Sequential([keras.Input((1,)), keras.layers.Rescaling(2.0)]))
    ones = np.ones((4, 1), "float32")
    history = model.fit(ones, ones, batch_size=4, verbose=0)
    return {"loss": history.history["loss"], "predicted": model.predict(ones, verbose=0)}


@training(tolerance=ADAM)
def freeze_train_unfreeze_train(strategy):
    def make_model():
        first, last = (keras.layers.Dense(units, kernel_initializer="ones") for units in (2, 1))
        return keras.Sequential([keras.Input((2,)), first, last])

    model = compiled(strategy, make_model)
    kernels = []
    for trainable in (False, True):
        with scope(strategy):
            model.layers[0].trainable = trainable
            model.compile(keras.optimizers.Adam(0.1), "mse")
        model.fit(np.ones((8, 2), "float32"), np.zeros((8, 1), "float32"), batch_size=4, verbose=0)
        kernels.append(np.asarray(model.layers[0].kernel))
    return outcome(model, frozen=kernels[0], unfrozen=kernels[1])


# Loss scales


def scaled(optimizer, initial_scale):
    return keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=initial_scale)


@training(tolerance=0.02)
def mixed_float16(strategy):
    def make_model():
        hidden = dense(16, 1, activation="tanh", dtype="mixed_float16")
        return keras.Sequential([keras.Input((8,)), hidden, dense(1, 2, dtype="mixed_float16")])

    model = compiled(strategy, make_model, lambda: scaled(keras.optimizers.SGD(0.05), 512.0))
    history = fit(model, *regression(NUM_UNEVEN_ROWS), epochs=2)
    return outcome(model, history, scale=np.asarray(model.optimizer.dynamic_scale))


@training()
def overflow_on_one_replica(strategy):
    """Of the four rows of a batch the last is infinite: the step is skipped; the next one is not."""
    model = linear(strategy, lambda: scaled(keras.optimizers.SGD(0.01), 8.0))
    x, y = np.ones((4, 2), "float32"), np.zeros((4, 1), "float32")
    infinite = x.copy()
    infinite[-1] = np.inf
    model.fit(infinite, y, batch_size=4, shuffle=False, verbose=0)
    skipped = flat(model.weights)
    model.fit(x, y, batch_size=4, shuffle=False, verbose=0)
    return outcome(
        model,
        skipped=skipped,
        scale=np.asarray(model.optimizer.dynamic_scale),
        updates=np.asarray(model.optimizer.inner_optimizer.iterations),
    )


@training()
def loss_scale_with_gradient_accumulation(strategy):
    make_optimizer = functools.partial(keras.optimizers.SGD, 0.05, gradient_accumulation_steps=2)
    model = compiled(strategy, make_optimizer=lambda: scaled(make_optimizer(), 64.0))
    history = fit(model, *regression(), epochs=2)
    return outcome(model, history, copies_that_differ=copies_that_differ(model.variables))


# With numbers computed by hand


def numbered_rows(num_rows):
    x = np.arange(2 * num_rows, dtype="float32").reshape(num_rows, 2) / 10
    return x, (x.sum(1, keepdims=True) * 0.3 + 1).astype("float32")


def eight_rows():
    return numbered_rows(8)


def linear(strategy, make_optimizer=lambda: keras.optimizers.SGD(0.01), num_columns=2, **options):
    def make_model():
        layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones", kernel_regularizer=regularizer)
        return keras.Sequential([keras.Input((num_columns,)), layer])

    regularizer = options.pop("kernel_regularizer", None)
    return compiled(strategy, make_model, make_optimizer, **options)


@training()
def one_step_on_eight_rows(strategy):
    x, y = eight_rows()
    model = linear(strategy)
    return outcome(model, model.fit(x, y, batch_size=8, shuffle=False, verbose=0))


@training()
def eight_rows_as_arrays(strategy):
    x, y = eight_rows()
    model = linear(strategy)
    history = model.fit(x, y, batch_size=4, shuffle=False, verbose=0)
    evaluated = model.evaluate(x, y, batch_size=4, verbose=0)
    return outcome(model, history, evaluated=evaluated, predicted=model.predict(x, batch_size=4, verbose=0))


@training()
def eight_rows_as_a_data_set(strategy):
    model = linear(strategy)
    return outcome(
        model, model.fit(tf.data.Dataset.from_tensor_slices(eight_rows()).batch(4), shuffle=False, verbose=0)
    )


@training()
def eight_rows_repeated(strategy):
    model = linear(strategy)
    data = tf.data.Dataset.from_tensor_slices(eight_rows()).batch(4).repeat()
    return outcome(model, model.fit(data, steps_per_epoch=2, shuffle=False, verbose=0))


# Of rows and batch sizes that leave an uneven last batch, or begin with one, the weights and the losses.
UNEVEN_BY_HAND = {
    (10, 4): ([0.938743, 0.935726], 0.731536, 0.580359),
    (9, 4): ([0.946218, 0.943476], 0.549142, 0.452785),
    (5, 4): ([0.998560, 0.999193], 0.293987, None),
    (10, 5): ([0.969547, 0.968221], 0.759243, 0.663915),
    (7, 7): ([0.996600, 0.996780], 0.321700, None),
    (1, 4): ([1.0, 1.001860], 0.864900, None),
}


def in_batches(num_rows, batch_size, **options):
    """Trains the linear model for one epoch."""

    def train(strategy):
        model = linear(strategy, **options)
        x, y = numbered_rows(num_rows)
        history = model.fit(x, y, batch_size=batch_size, shuffle=False, verbose=0)
        predicted = model.predict(x, batch_size=batch_size, verbose=0)
        return outcome(
            model,
            history,
            evaluated=model.evaluate(x, y, batch_size=batch_size, verbose=0),
            predicted=predicted,
            copies_that_differ=copies_that_differ(model.variables),
        )

    return train


for _rows, _size in UNEVEN_BY_HAND:
    TRAININGS[f"{_rows}_rows_in_batches_of_{_size}"] = Training(in_batches(_rows, _size), SGD)
TRAININGS["l2_regularizer_by_hand"] = Training(in_batches(8, 8, kernel_regularizer=keras.regularizers.L2(0.5)), SGD)
TRAININGS["clipnorm_by_hand"] = Training(
    in_batches(8, 8, make_optimizer=lambda: keras.optimizers.SGD(0.1, clipnorm=0.5)), SGD
)
TRAININGS["clipvalue_by_hand"] = Training(
    in_batches(8, 8, make_optimizer=lambda: keras.optimizers.SGD(0.1, clipvalue=0.5)), SGD
)
TRAININGS["gradient_accumulation_by_hand"] = Training(
    in_batches(16, 4, make_optimizer=lambda: keras.optimizers.SGD(0.01, gradient_accumulation_steps=2)), SGD
)


def weighted_rows(y, **weights):
    def train(strategy):
        model = linear(strategy, lambda: keras.optimizers.SGD(0.1), num_columns=1, weighted_metrics=["mse"])
        x = np.arange(1, 5, dtype="float32")[:, np.newaxis]
        y_column = np.asarray(y, "float32")[:, np.newaxis]
        return outcome(model, model.fit(x, y_column, batch_size=4, shuffle=False, verbose=0, **weights))

    return train


TRAININGS["sample_weight_by_hand"] = Training(
    weighted_rows([0, 0, 0, 0], sample_weight=np.asarray([1, 1, 0, 0], "float32")), SGD
)
TRAININGS["class_weight_by_hand"] = Training(weighted_rows([0, 0, 1, 1], class_weight={0: 1.0, 1: 3.0}), SGD)


class Adversaries(keras.Model):
    """Two networks of one weight and one bias: the first is to look like ones to the second."""

    def __init__(self):
        super().__init__()
        self.generator, self.discriminator = (keras.layers.Dense(1, kernel_initializer="ones") for _ in range(2))
        self.mean_loss = keras.metrics.Mean(name="discriminator_loss")

    def build(self, shape):
        self.generator.build(shape)
        self.discriminator.build(shape)

    def compile(self, generator_optimizer, discriminator_optimizer):
        super().compile()
        self.optimizers = generator_optimizer, discriminator_optimizer

    def train_step(self, x):
        def looks_real(values):
            return tf.reduce_mean(tf.square(self.discriminator(values) - 1))

        num_replicas = tf.distribute.get_strategy().num_replicas_in_sync
        with tf.GradientTape() as tape:
            loss = looks_real(x) + tf.reduce_mean(tf.square(self.discriminator(self.generator(x))))
            scaled_loss = loss / num_replicas
        self._update(tape, scaled_loss, self.discriminator, self.optimizers[1])
        with tf.GradientTape() as tape:
            generator_loss = looks_real(self.generator(x)) / num_replicas
        self._update(tape, generator_loss, self.generator, self.optimizers[0])
        self.mean_loss.update_state(loss)
        return {"discriminator_loss": self.mean_loss.result()}

    def _update(self, tape, loss, network, optimizer):
        variables = network.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))


@training(tolerance=ADAM)
def adversaries(strategy):
    with scope(strategy):
        model = Adversaries()
        model.build((None, 1))
        optimizers = keras.optimizers.SGD(0.1), keras.optimizers.SGD(0.05)
        model.compile(*optimizers)
    x = np.asarray([[0.25], [0.5], [0.75], [1.0]], "float32")
    history = model.fit(x, batch_size=4, epochs=3, shuffle=False, verbose=0)
    updates = [int(np.asarray(optimizer.iterations)) for optimizer in optimizers]
    return outcome(model, history, *optimizers, weights=flat(model.trainable_weights), updates=updates)


@training(tolerance=ADAM)
def custom_loop_with_uneven_batches(strategy):
    with scope(strategy):
        weights, optimizer = tf.Variable(tf.ones([2, 1])), keras.optimizers.Adam(0.1)

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.nn.compute_average_loss(tf.reduce_sum(tf.square(x @ weights), -1), global_batch_size=4)
        optimizer.apply_gradients([(tape.gradient(loss, weights), weights)])
        return loss

    @tf.function(reduce_retracing=True)
    def step_of_all(x):
        return step(x) if strategy is None else strategy.reduce("SUM", strategy.run(step, args=(x,)), axis=None)

    data = tf.data.Dataset.from_tensor_slices(np.ones((10, 2), "float32")).batch(4)
    data = data if strategy is None else strategy.experimental_distribute_dataset(data)
    losses = [float(step_of_all(x)) for x in data]
    updates = np.asarray(optimizer.iterations)
    return {"losses": losses, "weights": np.asarray(weights), "updates": updates}


@training()
def complex_weight(strategy):
    with scope(strategy):
        weight, optimizer = tf.Variable(1.0 + 0.0j, dtype=tf.complex64), keras.optimizers.SGD(0.1)

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(tf.math.real(tf.cast(x, tf.complex64) * weight))) / 4
        optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])
        return loss

    step_of_all = tf.function(step if strategy is None else lambda x: strategy.run(step, args=(x,)))
    data = tf.data.Dataset.from_tensor_slices(np.arange(1, 5, dtype="float32")).batch(4)
    for x in data if strategy is None else strategy.experimental_distribute_dataset(data):
        step_of_all(x)
    return {"weight": np.asarray(weight)}


@training()
def embedding_by_hand(strategy):
    return embedding_of_six_rows(strategy, lambda: keras.optimizers.SGD(0.1), epochs=1)


def embedding_of_six_rows(strategy, make_optimizer, epochs):
    """Words repeat within a row, within a replica and across replicas; two of the table's rows have none."""

    def make_model():
        words = keras.layers.Embedding(6, 2, embeddings_initializer="ones")
        last = keras.layers.Dense(1, kernel_initializer="ones")
        return keras.Sequential([keras.Input((3,), dtype="int32"), words, keras.layers.Flatten(), last])

    model = compiled(strategy, make_model, make_optimizer)
    x = np.asarray([[0, 0, 1], [0, 2, 2], [1, 1, 1], [5, 0, 2]], "int32")
    y = np.arange(1.0, 5.0, dtype="float32")[:, None]
    history = model.fit(x, y, batch_size=4, epochs=epochs, shuffle=False, verbose=0)
    return outcome(model, history, first_column=np.asarray(model.layers[0].embeddings)[:, 0])


@training(tolerance=ADAM)
def embedding_by_hand_with_adam(strategy):
    return embedding_of_six_rows(strategy, lambda: keras.optimizers.Adam(0.1), epochs=3)


@training(tolerance=ADAM)
def adamw_by_hand(strategy):
    model = linear(strategy, lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1))
    x, y = numbered_rows(16)
    return outcome(model, model.fit(x, y, batch_size=4, shuffle=False, verbose=0))


@training(tolerance=1e-3)
def mixed_float16_by_hand(strategy):
    def make_model():
        layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones", dtype="mixed_float16")
        return keras.Sequential([keras.Input((2,)), layer])

    model = compiled(strategy, make_model, lambda: scaled(keras.optimizers.SGD(0.01), 8.0))
    x, y = numbered_rows(8)
    return outcome(model, model.fit(x, y, batch_size=8, shuffle=False, verbose=0))


@training()
def jit_compile_left_to_keras(strategy):
    model = compiled(strategy, jit_compile="auto")
    return outcome(model, fit(model, *regression(), epochs=1))


@training()
def batch_normalization_by_hand(strategy):
    model = normalized(strategy, synchronized=True)
    layer = model.layers[0]
    return {"mean": np.asarray(layer.moving_mean), "variance": np.asarray(layer.moving_variance)}


def normalized(strategy, synchronized):
    """Returns a model of BatchNormalization after one step with two rows about 1 and two about 12."""
    make_layer = functools.partial(keras.layers.BatchNormalization, momentum=0.5, synchronized=synchronized)
    model = compiled(strategy, lambda: keras.Sequential([keras.Input((1,)), make_layer()]), metrics=[])
    x = np.asarray([[0.0], [2.0], [10.0], [14.0]], "float32")
    model.fit(x, x, batch_size=4, shuffle=False, verbose=0)
    return model


@training()
def schedule_by_hand(strategy):
    rate = keras.optimizers.schedules.PiecewiseConstantDecay([3], [0.1, 0.01])
    model = linear(strategy, lambda: keras.optimizers.SGD(rate))
    x, y = numbered_rows(16)
    model.fit(x, y, batch_size=4, shuffle=False, verbose=0)
    optimizer = model.optimizer
    return outcome(model, updates=np.asarray(optimizer.iterations), rate=np.asarray(optimizer.learning_rate))


BY_HAND: dict[str, dict[str, Any]] = {
    "one_step_on_eight_rows": {"weights": [0.993420, 0.993320]},
    "l2_regularizer_by_hand": {"weights": [0.983420, 0.983320], "history_loss": [1.414100]},
    "clipnorm_by_hand": {"weights": [0.964912, 0.964379]},
    "clipvalue_by_hand": {"weights": [0.95, 0.95]},
    "gradient_accumulation_by_hand": {"weights": [0.883689, 0.879072], "history_loss": [2.960135]},
    "sample_weight_by_hand": {"weights": [0.75], "history_loss": [1.25], "history_mse": [2.5]},
    "class_weight_by_hand": {"weights": [-1.95], "history_loss": [11.0]},
    "unused_variable": {"weights": [0.8, 1, 1, 1]},
    "nothing_to_train": {"loss": [1.0], "predicted": [[2.0]] * 4},
    "freeze_train_unfreeze_train": {"frozen": np.ones((2, 2))},
    "complex_weight": {"weight": -0.5},
    "embedding_by_hand": {"first_column": [0.2, 0.3, 0.5, 1, 1, 0.9]},
    "embedding_by_hand_with_adam": {"first_column": [0.47752, 0.48789, 0.55712, 1, 1, 0.77679]},
    "adamw_by_hand": {"weights": [0.984165, 0.984602]},
    "overflow_on_one_replica": {"skipped": [1, 1], "weights": [0.96, 0.96], "scale": 4, "updates": 1},
    "batch_normalization_by_hand": {"mean": [3.25], "variance": [16.875]},
    "schedule_by_hand": {"updates": 4, "rate": 0.01},
    "adversaries": {"weights": [1.09142, 0.21302, 0.88568, -0.07495], "updates": [3, 3]},
    "custom_loop_with_uneven_batches": {"losses": [4.0, 3.24001, 1.28133], "updates": 3},
    "no_retracing_from_epoch_to_epoch": {"more_traces": 0},
}
for (_rows, _size), (_weights, _loss, _evaluated) in UNEVEN_BY_HAND.items():
    BY_HAND[f"{_rows}_rows_in_batches_of_{_size}"] = {"weights": _weights, "history_loss": [_loss]}


def assert_numbers_computed_by_hand(names, recorded_of) -> None:
    near = functools.partial(np.testing.assert_allclose, rtol=2e-5, atol=2e-5)
    for name in BY_HAND.keys() & names:
        arrays = recorded_of(name)
        for array, values in BY_HAND[name].items():
            near(arrays[array], values, err_msg=f"{array} of {name}")
    if "mixed_float16_by_hand" in names:
        np.testing.assert_allclose(recorded_of("mixed_float16_by_hand")["weights"], [0.99342, 0.99332], atol=1e-4)
    for (num_rows, batch_size), (_, _, evaluated) in UNEVEN_BY_HAND.items():
        name = f"{num_rows}_rows_in_batches_of_{batch_size}"
        if evaluated is not None and name in names:
            near(recorded_of(name)["evaluated"][0], evaluated)
    for name in {"eight_rows_as_arrays", "eight_rows_as_a_data_set", "eight_rows_repeated"} & set(names):
        arrays = recorded_of(name)
        near(arrays["weights"], [0.986725, 0.986515])
        near([*arrays["history_loss"], *arrays["history_mae"]], [0.417493, 0.562521])
    if "eight_rows_as_arrays" in names:
        arrays = recorded_of("eight_rows_as_arrays")
        near(arrays["evaluated"], [0.396910, 0.549296])
        near(arrays["predicted"], eight_rows()[0] @ arrays["weights"][:, np.newaxis])
    if "freeze_train_unfreeze_train" in names:
        near(recorded_of("freeze_train_unfreeze_train")["unfrozen"], np.full((2, 2), 0.804106), rtol=1e-4)


# What differs by design, or by the number of workers


def unsynchronized_batch_normalization(strategy):
    """Returns the moving statistics, of which every replica has the same, whatever its own batches were."""
    model = normalized(strategy, synchronized=False)
    layer = model.layers[0]
    x = np.asarray([[1.0], [2.0], [5.0]], "float32")
    with scope(strategy):
        later = keras.models.clone_model(model)
        later.set_weights(model.get_weights())
    return {
        "mean": np.asarray(layer.moving_mean),
        "variance": np.asarray(layer.moving_variance),
        "copies_that_differ": copies_that_differ(model.variables),
        "predicted": model.predict(x, verbose=0),
        "predicted_with_the_same_weights": later.predict(x, verbose=0),
    }


def refusal_of_jit_compile(strategy):
    model = compiled(strategy, jit_compile=True)
    try:
        fit(model, *regression(), epochs=1)
    except ValueError as error:
        return {"message": str(error)}
    return {"message": "trained"}


def refusals_of_what_was_created_outside(strategy):
    """Returns what a training says of a layer, a metric and an optimizer that the strategy does not know."""
    layer, metric = keras.layers.Dense(1), keras.metrics.MeanSquaredError()
    layer.build((None, 3))
    optimizer = keras.optimizers.SGD()
    messages = {}
    for name, parts in {
        "layer": (layer, "sgd", []),
        "metric": (None, "sgd", [metric]),
        "optimizer": (None, optimizer, []),
    }.items():
        with strategy.scope():
            model = keras.Sequential([parts[0] or keras.layers.Dense(1)])
            model.compile(parts[1], "mse", metrics=parts[2])
        try:
            model.fit(np.ones((4, 3)), np.ones((4, 1)), verbose=0)
        except ValueError as error:
            messages[name] = str(error)
    return messages


OWN_BATCHES = ((6, 3), (4, 0))


def batches_of(worker, count):
    """Returns the data set of one worker: `count` batches of 4 rows."""
    return tf.data.Dataset.from_tensor_slices(regression(24, seed=worker)).batch(4).take(count)


def own_batches(strategy, counts):
    """Trains with as many batches on each worker as `counts` tells by its rank."""
    model = compiled(strategy)
    data = strategy.distribute_datasets_from_function(
        lambda context: batches_of(context.input_pipeline_id, counts[context.input_pipeline_id])
    )
    return outcome(model, model.fit(data, epochs=2, verbose=0))


def record_own_batches(folder, strategy) -> None:
    for counts in OWN_BATCHES:
        record(folder, f"own batches {counts}", functools.partial(own_batches, strategy, counts))


def own_batches_on_one_device(counts, devices_per_worker):
    """Trains on the batches that the workers of `own_batches` take in the same step, joined into one."""
    batches = [list(batches_of(worker, count)) for worker, count in enumerate(counts)]
    steps = [range(start, start + devices_per_worker) for start in range(0, max(counts), devices_per_worker)]
    joined = [
        [np.concatenate(part) for part in zip(*(own[i] for own in batches for i in step if i < len(own)), strict=True)]
        for step in steps
    ]
    signature = (tf.TensorSpec((None, 8)), tf.TensorSpec((None, 1)))
    data = tf.data.Dataset.from_generator(lambda: iter([tuple(pair) for pair in joined]), output_signature=signature)
    model = compiled(None)
    return as_arrays(outcome(model, model.fit(data, epochs=2, verbose=0)))


@training()
def sharded_data_of_49_rows_in_batches_of_16(strategy):
    """As arrays and as a stream of unknown length, with a validation of a batch that is no multiple."""
    x, y = regression(49)
    sources = {
        "arrays": (x, y),
        "unknown": tf.data.Dataset.from_tensor_slices((x, y)).filter(lambda *_: True),
    }
    arrays = {}
    for name, source in sources.items():
        share = functools.partial(tfdp.data.shard, source, strategy=strategy, seed=3)
        model = compiled(strategy)
        data, validation = share(global_batch_size=16, shuffle_buffer=100), share(global_batch_size=5)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that data of unknown length have come to their end
            history = model.fit(data, epochs=2, verbose=0, validation_data=validation)
            evaluated = model.evaluate(validation, verbose=0)
            predicted = model.predict(share(global_batch_size=5), verbose=0)
        outcomes = outcome(model, history, evaluated=evaluated, num_predicted=len(predicted))
        arrays |= {f"{name}_{key}": value for key, value in outcomes.items()}
    return arrays


# Inputs of every kind


def inputs_of_several_dtypes():
    inputs = {
        "word": keras.Input((1,), dtype="string", name="word"),
        "number": keras.Input((2,), dtype="int64", name="number"),
        "flag": keras.Input((1,), dtype="bool", name="flag"),
        "pixels": keras.Input((3, 3), dtype="uint8", name="pixels"),
        "x": keras.Input((8,), name="x"),
    }
    lookup = keras.layers.StringLookup(vocabulary=["a", "b", "c"])
    embedded = keras.layers.Embedding(5, 2, embeddings_initializer="ones")(lookup(inputs["word"]))
    joined = keras.layers.Concatenate()(
        [
            keras.layers.Flatten()(embedded),
            keras.layers.Rescaling(0.1)(inputs["number"]),
            keras.layers.Rescaling(1.0)(inputs["flag"]),
            keras.layers.Flatten()(keras.layers.Rescaling(1 / 255)(inputs["pixels"])),
            dense(4, 1, activation="tanh")(inputs["x"]),
        ]
    )
    outputs = {"line": dense(1, 2, name="line")(joined), "kind": dense(3, 3, activation="softmax", name="kind")(joined)}
    return keras.Model(inputs, outputs)


@training()
def dictionaries_of_several_dtypes(strategy):
    generator = np.random.default_rng(0)
    x, y = regression(21)
    features = {
        "word": np.array(list("abcz") * 6)[:21, np.newaxis],
        "number": generator.integers(0, 9, (21, 2)),
        "flag": generator.integers(0, 2, (21, 1)) > 0,
        "pixels": generator.integers(0, 256, (21, 3, 3)).astype("uint8"),
        "x": x,
    }
    targets = {"line": y, "kind": np.arange(21) % 3}
    weights = {"line": np.linspace(0.5, 1.5, 21), "kind": np.linspace(2.0, 0.0, 21)}
    losses = {"line": "mse", "kind": "sparse_categorical_crossentropy"}
    model = compiled(
        strategy, inputs_of_several_dtypes, lambda: keras.optimizers.SGD(0.05), loss=losses, metrics={"line": ["mae"]}
    )
    tensors = {**features, "word": tf.constant(features["word"])}
    data = tf.data.Dataset.from_tensor_slices((tensors, targets, weights)).batch(8)
    history = model.fit(data, epochs=2, verbose=0)
    predicted = model.predict(data.map(lambda x, y, weight: x), verbose=0)
    return outcome(model, history, evaluated=model.evaluate(data, verbose=0), **predicted)


class OfRows(keras.Model):
    """Takes rows that are ragged or sparse."""

    def __init__(self):
        super().__init__()
        self.line = dense(1, 1)

    def build(self, shape):
        self.line.build((None, 8))

    def call(self, x):
        if isinstance(x, tf.RaggedTensor):
            x = x.to_tensor(shape=[None, 8])
        return self.line(tf.sparse.to_dense(x) if isinstance(x, tf.SparseTensor) else x)


@training()
def ragged_and_sparse_rows(strategy):
    x, y = regression(21)
    lengths = [1 + row % 7 for row in range(21)]
    ragged = tf.RaggedTensor.from_row_lengths(np.concatenate([x[i, : lengths[i]] for i in range(21)]), lengths)
    sparse = tf.sparse.from_dense(np.where(np.abs(x) > 1, x, 0))
    arrays = {}
    for name, rows in {"ragged": ragged, "sparse": sparse}.items():
        with scope(strategy):
            model = OfRows()
            model.build((None, 8))
            model.compile(keras.optimizers.SGD(0.05), "mse")
        history = model.fit(tf.data.Dataset.from_tensor_slices((rows, y)).batch(8), epochs=2, verbose=0)
        arrays |= {f"{name}_{key}": value for key, value in outcome(model, history).items()}
    return arrays


class Slices(keras.utils.PyDataset):
    """Gives parts of an array as they are, not copies of them."""

    def __init__(self, x, y, size, **options):
        super().__init__(**options)
        self.x, self.y, self.size = x, y, size

    def __len__(self):
        return (len(self.x) + self.size - 1) // self.size

    def __getitem__(self, index):
        part = slice(index * self.size, (index + 1) * self.size)
        return self.x[part], self.y[part]


@training()
def python_gives_the_data(strategy):
    """As a PyDataset, with threads of its own too, and as generators that end and that do not."""
    x, y = regression(NUM_ROWS - 11)
    before = x.copy(), y.copy()

    def batches():
        slices = Slices(x, y, BATCH_SIZE)
        yield from (slices[index] for index in range(len(slices)))

    def endless():
        while True:
            yield from batches()

    sources = {
        "dataset": (lambda: Slices(x, y, BATCH_SIZE), {}),
        "threads": (lambda: Slices(x, y, BATCH_SIZE, workers=2), {}),
        "finite": (batches, {"epochs": 1}),
        "endless": (endless, {"steps_per_epoch": 4}),
    }
    arrays = {}
    for name, (source, options) in sources.items():
        model = compiled(strategy)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that the generator has come to its end
            history = model.fit(source(), **{"epochs": 2, "shuffle": False, "verbose": 0, **options})
        arrays |= {f"{name}_{key}": value for key, value in outcome(model, history).items()}
    changed = sum(float(np.abs(now - then).max()) for now, then in zip((x, y), before, strict=True))
    return {**arrays, "changed_by_training": changed}


@training()
def data_of_unknown_length(strategy):
    """Whose batches have one static shape, so that counting them does not look at them, and with what counts steps."""
    x, y = regression(96)
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([4, 8], [0.1, 0.01, 0.001])
    model = compiled(strategy, make_optimizer=lambda: keras.optimizers.SGD(schedule))
    data = tf.data.Dataset.from_tensor_slices((x, y)).filter(lambda *_: True).batch(32, drop_remainder=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        history = model.fit(data, epochs=3, verbose=0)
    # Without a strategy, the losses are those of the epoch times 3 / 4: Keras counts a step more than it made.
    losses = np.array(history.history["loss"]) * (1.0 if strategy is not None else 4 / 3)
    return {**outcome(model), "losses": losses, "iterations": int(model.optimizer.iterations)}


# Losses, logs and variables of a user's own


class OwnLoss(keras.Model):
    """Takes means over its rows, without a loss of Keras."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return keras.ops.mean(keras.ops.square(y_pred - y)) + keras.ops.sum(self.losses)


class AddedLoss(keras.Model):
    """Adds a mean over its rows to the loss that it was compiled with."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        own = super().compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight)
        return own + 0.3 * keras.ops.mean(keras.ops.square(y_pred))


class OwnStep(OwnLoss):
    """Tells in its logs what it finds in its rows."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            predicted = self(x, training=True)
            loss = self.compute_loss(x=x, y=y, y_pred=predicted)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss, "distance": keras.ops.mean(keras.ops.abs(predicted - y)), "twice": 2.0 * loss}


def losses_of_its_own_with(strategy, *, run_eagerly):
    arrays = {}
    for kind in (OwnLoss, AddedLoss, OwnStep):

        def make_model(kind=kind):
            x = keras.Input((8,))
            return kind(x, dense(1, 2)(dense(16, 1, activation="tanh", kernel_regularizer="l2")(x)))

        options = {"loss": None if kind is OwnLoss else "mse", "metrics": None, "run_eagerly": run_eagerly}
        model = compiled(strategy, make_model, **options)
        history = fit(model, *regression(NUM_ROWS - 11), epochs=1)
        if run_eagerly:
            history.history.pop("twice", None)  # tfdp sees only in a graph that it is made of the loss
        arrays |= {f"{kind.__name__} {key}": value for key, value in outcome(model, history).items()}
    return arrays


@training()
def losses_of_its_own(strategy):
    return losses_of_its_own_with(strategy, run_eagerly=False)


@training()
def losses_of_its_own_run_eagerly(strategy):
    return losses_of_its_own_with(strategy, run_eagerly=True)


class Remembering(keras.layers.Layer):
    """Keeps moving averages of its inputs, how many rows it has seen, in how many steps, and whether it has any."""

    def build(self, shape):
        options = {"initializer": "zeros", "trainable": False}
        self.average = self.add_weight(shape=(shape[-1],), name="average", **options)
        self.num_rows = self.add_weight(shape=(), name="num_rows", aggregation="sum", **options)
        self.mean = self.add_weight(shape=(), name="mean", aggregation="mean", **options)
        self.num_steps = self.add_weight(shape=(), dtype="int32", name="num_steps", **options)
        self.twice = self.add_weight(shape=(), dtype="int32", name="twice", **options)
        self.has_any = self.add_weight(shape=(), dtype="bool", name="has_any", **options)

    def call(self, x, training=False):
        if training:
            self.average.assign(0.9 * self.average + 0.1 * keras.ops.mean(x, axis=0))
            self.num_rows.assign_add(keras.ops.cast(keras.ops.shape(x)[0], "float32"))
            self.mean.assign_add(keras.ops.mean(x))
            self.num_steps.assign_add(1)
            self.twice.assign_add(2)
            self.has_any.assign(True)
        return x


@training()
def variables_of_a_layer(strategy):
    model = compiled(strategy, lambda: keras.Sequential([keras.Input((8,)), Remembering(), dense(1, 1)]))
    history = fit(model, *regression(NUM_ROWS - 11), epochs=2)
    return outcome(model, history)


@training(tolerance=EXACT)
def sums_of_any_numbers(strategy):
    """Every replica brings the same nest of numbers; the sum is divided by the number of replicas."""

    def numbers():
        return {"x": tf.constant(1.5), "n": [tf.constant(2), tf.constant(3, tf.int64)], "u": tf.constant(5, tf.uint8)}

    if strategy is None:
        return {str(i): leaf for i, leaf in enumerate(tf.nest.flatten({**numbers(), "any": tf.constant(True)}))}

    @tf.function
    def sums():
        def on_replica():
            nest = {**numbers(), "any": tf.constant(True)}
            return tf.distribute.get_replica_context().all_reduce("SUM", nest)

        return strategy.run(on_replica)

    first = tf.nest.map_structure(lambda one: strategy.experimental_local_results(one)[0].numpy(), sums())
    size = strategy.num_replicas_in_sync
    leaves = [leaf if leaf.dtype == bool else leaf / size for leaf in tf.nest.flatten(first)]
    return {str(i): leaf for i, leaf in enumerate(leaves)}


class AsInTheGuide(keras.Model):
    """Updates its metrics by hand, its loss among them, and tells more."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            predicted = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=predicted)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, predicted)
        return {**{metric.name: metric.result() for metric in self.metrics}, "shifted": 3.0 - 2.0 * loss}


class AlsoTellsTheRate(keras.Model):
    """Tells more than its metrics, in training and evaluation."""

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        metrics = super().compute_metrics(x, y, y_pred, sample_weight)
        return {**metrics, "rate": tf.convert_to_tensor(self.optimizer.learning_rate)}


@training()
def metrics_beside_other_logs(strategy):
    x, y = regression(37)
    arrays = {}
    for kind in (AsInTheGuide, AlsoTellsTheRate):

        def make_model(kind=kind):
            inputs = keras.Input((8,))
            return kind(inputs, dense(1, 1, activation="sigmoid")(inputs))

        with scope(strategy):
            model = make_model()
            metrics = [keras.metrics.AUC(name="auc"), keras.metrics.F1Score(threshold=0.5, name="f1")]
            model.compile(keras.optimizers.SGD(0.05), "mse", metrics=metrics)
        labels = (y > 0).astype("float32")
        history = model.fit(x, labels, batch_size=7, epochs=2, shuffle=False, verbose=0, validation_data=(x, labels))
        arrays |= {f"{kind.__name__} {key}": value for key, value in outcome(model, history).items()}
    return arrays


class OnlySteps(keras.Model):
    """Has no `call`, only a step."""

    def __init__(self):
        super().__init__()
        self.line = keras.Sequential([keras.Input((8,)), dense(1, 1)])
        self.own_loss = keras.metrics.Mean(name="loss")

    @property
    def metrics(self):
        return [self.own_loss]

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = keras.losses.MeanSquaredError()(y, self.line(x, training=True))
        gradients = tape.gradient(loss, self.line.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.line.trainable_variables, strict=True))
        self.own_loss.update_state(loss)
        return {"loss": self.own_loss.result()}


@training()
def model_without_call(strategy):
    with scope(strategy):
        model = OnlySteps()
        model.compile(keras.optimizers.SGD(0.05))
    return outcome(model, fit(model, *regression(NUM_ROWS - 11), epochs=2))


class Largest(keras.metrics.Metric):
    """The sum of squared errors, and how many were larger than one."""

    def __init__(self, name="largest"):
        super().__init__(name=name)
        self.total = self.add_variable(shape=(), initializer="zeros", name="total")
        self.count = self.add_variable(shape=(), initializer="zeros", name="count")

    def update_state(self, y_true, y_pred, sample_weight=None):
        errors = keras.ops.square(y_true - y_pred)
        self.total.assign_add(keras.ops.sum(errors))
        self.count.assign_add(keras.ops.sum(keras.ops.cast(errors > 0.25, "float32")))

    def result(self):
        return self.total / (1.0 + self.count)


@training()
def metrics_of_scores(strategy):
    """Scores .1 to .95 of labels 0 and 1, in batches of 4: by hand, the AUC is .84 and the accuracy .8."""
    scores = np.array([0.1, 0.9, 0.8, 0.3, 0.6, 0.4, 0.7, 0.2, 0.95, 0.05], "float32")[:, np.newaxis]
    labels = np.array([0, 1, 0, 1, 1, 0, 1, 0, 1, 0], "float32")[:, np.newaxis]

    def metrics():
        kinds = ("AUC", "BinaryAccuracy", "TruePositives", "Precision", "Recall", "RootMeanSquaredError", "R2Score")
        options = {"AUC": {"num_thresholds": 2000}}
        made = [getattr(keras.metrics, kind)(name=kind, **options.get(kind, {})) for kind in kinds]
        return [*made, keras.metrics.F1Score(threshold=0.5, name="F1Score"), Largest()]

    def identity():
        x = keras.Input((1,))
        return keras.Model(x, keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")(x))

    with scope(strategy):
        model = identity()
        model.compile(keras.optimizers.SGD(0.0), "mse", metrics=metrics())
    evaluated = model.evaluate(scores, labels, batch_size=4, verbose=0, return_dict=True)
    history = model.fit(scores, labels, batch_size=4, epochs=1, shuffle=False, verbose=0)
    in_order = {f"predicted_{size}": model.predict(scores, batch_size=size, verbose=0) for size in (3, 4, 11)}
    return {**evaluated, **outcome(model, history), **in_order}


# Saving


@training(tolerance=ADAM)
def saved_and_loaded(strategy):
    """Goes on from a file with the optimizer where it stood, without the strategy and within it; see B54 for values."""
    x, y = regression(8, 4, seed=5)
    arrays = {}
    with tempfile.TemporaryDirectory() as folder:
        model = compiled(strategy, lambda: mlp(4, 3), lambda: keras.optimizers.Adam(0.1))

        def go_on(model):
            history = model.fit(x, y, batch_size=4, epochs=2, shuffle=False, verbose=0)
            return np.array(history.history["loss"])

        go_on(model)
        model.save(f"{folder}/model.keras")
        model.save_weights(f"{folder}/model.weights.h5")
        checkpoint = tf.train.Checkpoint(model=model).save(f"{folder}/checkpoint")
        model.export(f"{folder}/exported", verbose=False)
        exported = tf.saved_model.load(f"{folder}/exported")
        arrays["served"] = exported.serve(x)
        arrays["iterations"] = int(model.optimizer.iterations)
        with scope(strategy):
            loaded = keras.models.load_model(f"{folder}/model.keras")
            other = compiled(strategy, lambda: mlp(4, 3), lambda: keras.optimizers.Adam(0.1))
            other.optimizer.build(other.trainable_variables)
        tf.train.Checkpoint(model=other).restore(checkpoint).assert_existing_objects_matched()
        by_weights = compiled(strategy, lambda: mlp(4, 3))
        by_weights.load_weights(f"{folder}/model.weights.h5")
        arrays["by_weights"] = flat(by_weights.weights)
        plain = keras.models.load_model(f"{folder}/model.keras")
        trained = {"on": model, "loaded": loaded, "checkpoint": other, "plain": plain}
        losses = {name: go_on(one) for name, one in trained.items()}
    return {**arrays, **{f"losses_{name}": values for name, values in losses.items()}}


TRAININGS["moving_average_that_overwrites_with_gradient_accumulation"] = Training(
    accumulating(mlp, regression, use_ema=True, ema_overwrite_frequency=3), SGD
)


def rows_that_are_seen_in_a_shuffled_epoch(strategy):
    """Returns how often each row of an array came, where each worker has a seed of its own.

    A row is 1 in a column of its own, and its weight falls by 1 whenever it comes.
    """
    rows = np.eye(37, dtype="float32")
    keras.utils.set_random_seed(
        1 if strategy.cluster_resolver is None else 1 + (strategy.cluster_resolver.task_id or 0)
    )
    counts = {}
    for name, data in {
        "arrays": {"x": rows, "y": rows[:, :1], "batch_size": 8, "shuffle": True},
        "data set": {"x": tf.data.Dataset.from_tensor_slices((rows, rows[:, :1])).shuffle(40).batch(8)},
    }.items():
        with scope(strategy):
            model = keras.Sequential(
                [keras.Input((37,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")]
            )
            model.compile(keras.optimizers.SGD(1.0), loss=lambda true, predicted: predicted, run_eagerly=False)
        model.fit(**data, epochs=2, verbose=0)
        counts[name] = -model.get_weights()[0][:, 0]
    return counts


# What two replicas have shown of kinds of models, and of each variable by itself, needs no showing on four.
_ON_TWO_REPLICAS_ONLY = {
    "metrics_of_scores",
    "dictionaries_of_several_dtypes",
    "saved_and_loaded",
    "freeze_train_unfreeze_train",
    "complex_and_double_variables",
    "eight_rows_as_a_data_set",
    "9_rows_in_batches_of_4",
    "7_rows_in_batches_of_7",
    "mixed_float16_by_hand",
    "batch_normalization_by_hand",
    "metrics_beside_other_logs",
    "model_without_call",
    "ragged_and_sparse_rows",
    "python_gives_the_data",
    "data_of_unknown_length",
    "losses_of_its_own",
    "two_optimizers",
    "data_set_with_repeat_and_steps_per_epoch",
    "clipnorm",
    "embedding_with_adam_and_clipnorm",
    "integer_variable",
    "custom_loop_in_a_function",
    "custom_loop_run_eagerly",
    "train_test_and_predict_on_batch",
    "no_retracing_from_epoch_to_epoch",
    "nothing_to_train",
    "complex_weight",
    "embedding_by_hand",
    "moving_average_that_overwrites_with_gradient_accumulation",
    "validation_data_and_callbacks",
    "custom_train_step",
    "three_models_one_after_another",
    "global_clipnorm",
}
# Features whose arithmetic is that of a replica, or of a reduction that others show.
_ON_ONE_MACHINE_ONLY = {
    "adam",
    "unbuilt_sequential",
    "functional",
    "subclassed",
    "two_models_in_turn",
    "clipvalue",
    "bfloat16_layer",
    "reduce_of_plain_numbers",
    "loss_that_returns_a_scalar",
    "unused_variable",
    "eight_rows_as_arrays",
    "eight_rows_repeated",
    "10_rows_in_batches_of_4",
    "l2_regularizer_by_hand",
    "clipnorm_by_hand",
    "clipvalue_by_hand",
    "gradient_accumulation_by_hand",
    "sample_weight_by_hand",
    "class_weight_by_hand",
    "embedding_by_hand_with_adam",
    "adamw_by_hand",
    "schedule_by_hand",
    "losses_of_its_own_run_eagerly",
    "jit_compile_left_to_keras",
    "steps_per_execution_with_uneven_batches",
    "validation_split_with_uneven_batches",
    "class_weights",
    "l2_regularizer",
    "sgd_with_weight_decay",
    "adamw",
    "moving_average",
    "constraint",
    "frozen_layer",
    "mixed_float16",
    "loss_scale_with_gradient_accumulation",
    "evaluate_uneven_rows_with_several_metrics",
    "mean_with_sample_weight",
    "losses_that_are_summed",
    "losses_that_are_not_reduced",
    "add_loss",
    "activity_regularizer",
    "moving_average_that_overwrites",
    "gradient_accumulation",
    "gradient_accumulation_of_an_embedding",
}
BETWEEN_TWO_WORKERS = tuple(name for name in TRAININGS if name not in _ON_ONE_MACHINE_ONLY)
ON_FOUR_REPLICAS = tuple(name for name in BETWEEN_TWO_WORKERS if name not in _ON_TWO_REPLICAS_ONLY)

# Those that are worth a run with buckets of a few bytes.
IN_SMALL_BUCKETS = ("sgd_with_momentum", "embedding", "one_step_on_eight_rows")


def sums_of_two_dtypes(strategy):
    """Returns what each replica of this process gets of an all-reduce of an integer and a float64."""

    @tf.function
    def reduce_all():
        def on_replica():
            tensors = [tf.constant(100003, tf.int64), tf.constant([1.0], tf.float64)]
            return tf.distribute.get_replica_context().all_reduce("SUM", tensors)

        return strategy.run(on_replica)

    integers, floats = (strategy.experimental_local_results(part) for part in reduce_all())
    return {"integers": np.stack(integers), "floats": np.stack(floats)}


# What compression does and what it leaves alone


class Compression(NamedTuple):
    """A compressor of every gradient, however small, and how far it may lead a short training from one device.

    Attributes:
        build: makes the compressor.
        band: of losses, relative; of weights, absolute.
    """

    build: Callable[[], tfdp.compression.Compressor]
    band: float


_lossy = tfdp.compression
COMPRESSORS = {
    "none": Compression(_lossy.none, 1e-4),
    "bf16": Compression(_lossy.bf16, 0.02),
    "fp16": Compression(_lossy.fp16, 0.02),
    "e4m3": Compression(lambda: _lossy.error_feedback(_lossy.e4m3()), 0.02),
    "e5m2": Compression(lambda: _lossy.error_feedback(_lossy.e5m2()), 0.05),
    "int8": Compression(lambda: _lossy.error_feedback(_lossy.int8()), 0.02),
    "int4": Compression(lambda: _lossy.error_feedback(_lossy.int4()), 0.1),
    "sign": Compression(lambda: _lossy.error_feedback(_lossy.sign()), 0.3),
    "qsgd": Compression(lambda: _lossy.qsgd(bits=8), 0.05),
    "tern_grad": Compression(_lossy.tern_grad, 0.3),
    "natural": Compression(_lossy.natural, 0.1),
    "warm_up": Compression(lambda: _lossy.warm_up(_lossy.error_feedback(_lossy.int4()), steps=2), 0.1),
    "topk": Compression(lambda: _lossy.error_feedback(_lossy.top_k(0.75)), 0.1),
    "randomk": Compression(lambda: _lossy.error_feedback(_lossy.random_k(0.75)), 0.2),
    "threshold": Compression(lambda: _lossy.error_feedback(_lossy.threshold(1e-3)), 0.05),
    "powersgd": Compression(lambda: _lossy.error_feedback(_lossy.power_sgd(2, min_compression_rate=1)), 0.2),
}
# Trainings that have come out wrong under compressors elsewhere: variables without gradients, frozen ones, complex
# numbers, rows that several replicas touch, overflow on one replica.
UNDER_COMPRESSION = (
    "unused_variable",
    "freeze_train_unfreeze_train",
    "complex_weight",
    "complex_and_double_variables",
    "embedding_by_hand",
    "overflow_on_one_replica",
)
# What depends on the arithmetic of a compressor, not on its way to travel alone.
UNDER_EVERY_COMPRESSOR = ("complex_and_double_variables", "overflow_on_one_replica")
LARGE_GRADIENTS = ("fp16", "int8")
# One of each way to travel.
BETWEEN_WORKERS = ("bf16", "int8", "sign", "warm_up", "topk", "threshold", "powersgd")
OF_THREE_WORKERS = ("int8", "tern_grad")
ON_THE_WIRE = ("embedding_by_hand", "overflow_on_one_replica")


def trained_under(name):
    """Returns the names of the trainings of `UNDER_COMPRESSION` that a compressor is tried on."""
    return UNDER_COMPRESSION if name in ("none", "int8", "topk", "powersgd") else UNDER_EVERY_COMPRESSOR


def record_under_compressors(
    folder, make_strategy, names=tuple(COMPRESSORS), training_names_of=trained_under, large=LARGE_GRADIENTS
) -> None:
    """Records trainings under compressors."""
    for name in names:
        strategy = make_strategy(compression=COMPRESSORS[name].build())
        record(folder, f"compressed by {name}", functools.partial(compressed, strategy))
        for training_name in training_names_of(name):
            function = TRAININGS[training_name].function
            record(folder, f"{training_name} by {name}", functools.partial(function, strategy))
    for name in large:
        strategy = make_strategy(compression=COMPRESSORS[name].build())
        record(folder, f"large gradients by {name}", functools.partial(large_gradients, strategy))


def record_compression(folder, make_strategy) -> None:
    """Records what goes through compression under strategies made by `make_strategy(compression=..)`."""
    recorder = Recorder()
    strategy = make_strategy(compression=recorder)
    record(folder, "recorded", lambda: recorded_shapes(strategy, recorder))
    strategy = make_strategy(compression=Dropper())
    record(folder, "dropped", functools.partial(with_all_kinds_of_reductions, strategy))
    record(folder, "dropped beside sparse", functools.partial(only_the_embedding_trains, strategy))
    record(folder, "own compressor", lambda: compressed(make_strategy(compression=WithoutRepr())))
    warming_up = tfdp.compression.dgc(0.3, warm_up_steps=6)
    record(folder, "dgc", lambda: without_momentum_of_the_optimizer(make_strategy(compression=warming_up)))


def compressed(strategy):
    x, y = regression()
    model = compiled(strategy, make_optimizer=lambda: keras.optimizers.Adam(0.01))
    arrays = outcome(model, fit(model, x, y, epochs=2))
    if strategy is None:
        return arrays
    report = strategy.compression_report()
    return {**arrays, "traffic": [report.num_members, report.uncompressed_wire_bytes, report.wire_bytes]}


def without_momentum_of_the_optimizer(strategy):
    model = compiled(strategy, make_optimizer=lambda: keras.optimizers.SGD(0.005))
    return outcome(model, fit(model, *regression(), epochs=4))


def large_gradients(strategy):
    """Gradients beyond the range of float16, on some of the rows."""
    x, y = regression(2 * BATCH_SIZE)
    model = compiled(strategy, make_optimizer=lambda: keras.optimizers.SGD(1e-8))
    return outcome(model, fit(model, x, np.where(y > 0, 1e7, y), epochs=1))


class Recorder(tfdp.compression.Compressor):
    """Sums as they are, and remembers the shapes of, the gradients that it is given."""

    def __init__(self):
        self.shapes = []

    def reduce(self, gradients, states, group, *, name):
        self.shapes += [tuple(gradient.shape) for gradient in gradients]
        return tfdp.compression.Reduced(group.sum(gradients, name=name), list(gradients), list(states))

    def __repr__(self):
        return "Recorder()"


class WithoutRepr(Recorder):
    __repr__ = object.__repr__


class Dropper(tfdp.compression.Compressor):
    """Loses every gradient: what trains under it did not go through compression."""

    def reduce(self, gradients, states, group, *, name):
        nothing = [tf.zeros_like(gradient) for gradient in gradients]
        return tfdp.compression.Reduced(nothing, nothing, list(states))

    def __repr__(self):
        return "Dropper()"


def with_all_kinds_of_reductions(strategy, learning_rate=0.05):
    """Trains with losses, metrics and the statistics of BatchNormalization, which replicas reduce beside gradients."""
    x, y = regression()
    model = compiled(strategy, with_batch_normalization, lambda: keras.optimizers.SGD(learning_rate))
    history = fit(model, x, y, epochs=2)
    return outcome(
        model,
        history,
        statistics=flat(model.non_trainable_variables),
        evaluated=model.evaluate(x, y, batch_size=BATCH_SIZE, verbose=0),
    )


def recorded_shapes(strategy, recorder):
    """Returns how often each gradient was compressed for each trainable variable, and what else was."""
    with_all_kinds_of_reductions(strategy)
    expected = [tuple(variable.shape) for variable in with_batch_normalization().trainable_variables]
    seen = {shape: recorder.shapes.count(shape) / expected.count(shape) for shape in set(expected)}
    return {"times": sorted(seen.values()), "others": len([s for s in recorder.shapes if s not in expected])}


def only_the_embedding_trains(strategy):
    def make_model():
        model = with_embedding()
        model.layers[-1].trainable = False
        return model

    model = compiled(strategy, make_model)
    return outcome(model, fit(model, *words_that_repeat(), epochs=2))


def assert_near_one_device(received, band=0.02):
    """The weights of `compressed` are finite, near those of one device, and the same on all replicas."""
    expected = compressed_on_one_device()
    assert np.all(np.isfinite(received["weights"]))
    assert received["copies_that_differ"] == 0
    np.testing.assert_allclose(received["weights"], expected["weights"], atol=band)
    np.testing.assert_allclose(received["history_loss"], expected["history_loss"], rtol=band)


def assert_momentum_was_added(received):
    """Replicas agree, and are further than one device, whose optimizer has no momentum either."""
    loss = as_arrays(without_momentum_of_the_optimizer(None))["history_loss"]
    assert received["copies_that_differ"] == 0
    assert np.all(np.diff(received["history_loss"]) < 0)
    assert received["history_loss"][-1] < 0.9 * loss[-1]


@functools.cache
def compressed_on_one_device():
    return as_arrays(compressed(None))


def assert_right_under_compression(recorded_of, name, training_name):
    """A training under a compressor leaves what must stay as it is, and moves the rest near where one device does."""
    received = recorded_of(f"{training_name} by {name}")
    exact = 2e-5 if name == "none" else None
    if training_name == "unused_variable":
        used, *unused = received["weights"]
        np.testing.assert_allclose(used, 0.8, atol=exact or 0.1)
        assert unused == [1, 1, 1]
    elif training_name == "freeze_train_unfreeze_train":
        np.testing.assert_array_equal(received["frozen"], np.ones((2, 2)))
    elif training_name == "complex_weight":
        np.testing.assert_allclose(received["weight"], -0.5, atol=2e-5)
    elif training_name == "complex_and_double_variables":
        assert received["copies_that_differ"] == 0
        expected = on_one_device(training_name)["weights"]
        np.testing.assert_allclose(received["weights"], expected, atol=COMPRESSORS[name].band)
    elif training_name == "embedding_by_hand":
        np.testing.assert_allclose(received["first_column"], [0.2, 0.3, 0.5, 1, 1, 0.9], atol=exact or 0.01)
        np.testing.assert_array_equal(received["first_column"][[3, 4]], 1)
    else:
        np.testing.assert_array_equal(received["skipped"], 1)
        assert (received["scale"], received["updates"]) == (4, 1)
        np.testing.assert_allclose(received["weights"], 0.96, atol=exact or 0.02)


def assert_traffic(name, received):
    """Messages are as long as `tfdp.traffic` says of each gradient, and casts halve it."""
    uncompressed_bytes = sum(4 * int(np.prod(variable.shape)) for variable in mlp().trainable_variables)
    num_replicas, before, after = received["traffic"].tolist()
    if name == "threshold":  # of which nobody knows how much it sends
        uncompressed_bytes = 0
    assert before == uncompressed_bytes * 2 * (num_replicas - 1) / num_replicas
    if name in ("none", "bf16", "fp16"):
        assert after == before // (1 if name == "none" else 2)


def assert_only_gradients_were_dropped(received):
    complaints = differences(as_arrays(with_all_kinds_of_reductions(None, learning_rate=0.0)), received, SGD)
    assert not complaints, "\n".join(complaints)


def assert_sparse_gradients_were_exact(received):
    expected = as_arrays(only_the_embedding_trains(None))
    assert np.any(expected["weights"] != flat(with_embedding().weights))
    complaints = differences(expected, received, SGD)
    assert not complaints, "\n".join(complaints)
