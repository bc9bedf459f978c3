"""Small trainings that give the same arrays on one device and under every strategy.

Each is a function of a strategy, or of None for one device. It returns named arrays, and runs the same program on every
worker. `TRAININGS` is the table; a new training joins by a decorated function.
"""

import contextlib
import functools
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

import tfdp

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


# With numbers computed by hand


def eight_rows():
    x = np.arange(16, dtype="float32").reshape(8, 2) / 10
    return x, (x.sum(1, keepdims=True) * 0.3 + 1).astype("float32")


def linear(strategy):
    def make_model():
        kernel = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
        return keras.Sequential([keras.Input((2,)), kernel])

    return compiled(strategy, make_model, lambda: keras.optimizers.SGD(0.01))


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


def assert_numbers_computed_by_hand(recorded_of) -> None:
    near = functools.partial(np.testing.assert_allclose, rtol=2e-5, atol=2e-5)
    near(recorded_of("one_step_on_eight_rows")["weights"], [0.993420, 0.993320])
    for name in ("eight_rows_as_arrays", "eight_rows_as_a_data_set", "eight_rows_repeated"):
        arrays = recorded_of(name)
        near(arrays["weights"], [0.986725, 0.986515])
        near([*arrays["history_loss"], *arrays["history_mae"]], [0.417493, 0.562521])
    arrays = recorded_of("eight_rows_as_arrays")
    near(arrays["evaluated"], [0.396910, 0.549296])
    near(arrays["predicted"], eight_rows()[0] @ arrays["weights"][:, np.newaxis])


# What two replicas have shown of kinds of models and data needs no showing on four.
_ON_TWO_REPLICAS_ONLY = {
    "validation_data_and_callbacks",
    "unbuilt_sequential",
    "functional",
    "subclassed",
    "custom_train_step",
    "three_models_one_after_another",
    "two_models_in_turn",
    "global_clipnorm",
    "clipvalue",
}
ON_FOUR_REPLICAS = tuple(name for name in TRAININGS if name not in _ON_TWO_REPLICAS_ONLY)

# Those that are worth a run with buckets of a few bytes.
IN_SMALL_BUCKETS = ("sgd_with_momentum", "embedding", "one_step_on_eight_rows")

# What compression does and what it leaves alone

COMPRESSORS = ("none", "bf16", "fp16")


def record_compression(folder, make_strategy) -> None:
    """Records what compression does under strategies made by `make_strategy(compression=..)`."""
    for name in COMPRESSORS:
        strategy = make_strategy(compression=name)
        record(folder, f"compressed by {name}", functools.partial(compressed, strategy))
        record(folder, f"large gradients by {name}", functools.partial(large_gradients, strategy))
    recorder = Recorder()
    strategy = make_strategy(compression=recorder)
    record(folder, "recorded", lambda: recorded_shapes(strategy, recorder))
    strategy = make_strategy(compression=Dropper())
    record(folder, "dropped", functools.partial(with_all_kinds_of_reductions, strategy))
    record(folder, "dropped beside sparse", functools.partial(only_the_embedding_trains, strategy))
    record(folder, "own compressor", lambda: compressed(make_strategy(compression=WithoutRepr())))


def compressed(strategy):
    x, y = regression()
    model = compiled(strategy, make_optimizer=lambda: keras.optimizers.Adam(0.01))
    arrays = outcome(model, fit(model, x, y, epochs=2))
    return {**arrays, "traffic": getattr(strategy, "gradient_traffic", ())}


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


def assert_near_one_device(received):
    """The weights of `compressed` are finite, near those of one device, and the same on all replicas."""
    expected = as_arrays(compressed(None))
    assert np.all(np.isfinite(received["weights"]))
    assert received["copies_that_differ"] == 0
    np.testing.assert_allclose(received["weights"], expected["weights"], atol=0.02)
    np.testing.assert_allclose(received["history_loss"], expected["history_loss"], rtol=0.02)


def assert_traffic(name, received):
    uncompressed_bytes = sum(4 * int(np.prod(variable.shape)) for variable in mlp().trainable_variables)
    sent_bytes = uncompressed_bytes if name == "none" else uncompressed_bytes // 2
    assert received["traffic"].tolist() == [uncompressed_bytes, sent_bytes]


def assert_only_gradients_were_dropped(received):
    complaints = differences(as_arrays(with_all_kinds_of_reductions(None, learning_rate=0.0)), received, SGD)
    assert not complaints, "\n".join(complaints)


def assert_sparse_gradients_were_exact(received):
    expected = as_arrays(only_the_embedding_trains(None))
    assert np.any(expected["weights"] != flat(with_embedding().weights))
    complaints = differences(expected, received, SGD)
    assert not complaints, "\n".join(complaints)
