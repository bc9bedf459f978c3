"""What the convergence benchmark trains: small models, their data and their optimizers."""

import pydoc_data.topics
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import keras
import numpy as np

CONTEXT, VOCABULARY, WIDTH, NUM_HEADS, NUM_BLOCKS = 64, 128, 64, 4, 2
NUM_VALIDATION_WINDOWS = 256


class Data(NamedTuple):
    """Examples to train on, and others to measure quality on.

    Attributes:
        inputs: [example, ...].
        targets: classes, int32 [example] or [example, position].
        test_inputs: like `inputs`.
        test_targets: like `targets`.
    """

    inputs: np.ndarray
    targets: np.ndarray
    test_inputs: np.ndarray
    test_targets: np.ndarray


class Workload(NamedTuple):
    """A training.

    Attributes:
        model: builds it; it gives logits of classes.
        data: loads the examples.
        optimizer: (name of a compressor, steps of the training) -> the optimizer.
        quality: "accuracy" in percent or "loss" in nats, on the test examples.
        num_steps: of a training.
        num_evaluations: at equal distances, the last after the last step.
        batch_size: of all replicas together.
        num_replicas: that share a batch.
        left_out: names of compressors that cannot train it, with the reason.
        only: names of compressors that are trained, or none for all that are not left out.
        reference: the workload whose training without compression is compared with, "" for this one.
        note: what to say of it.
    """

    model: Callable[[], keras.Model]
    data: Callable[[], Data]
    optimizer: Callable[[str, int], keras.Optimizer]
    quality: str
    num_steps: int
    num_evaluations: int
    batch_size: int
    num_replicas: int
    left_out: Mapping[str, str] = MappingProxyType({})
    only: tuple[str, ...] = ()
    reference: str = ""
    note: str = ""


def batches(workload: Workload, num_examples: int, num_steps: int, num_parts: int, seed: int) -> np.ndarray:
    """Returns which examples each replica takes in each step, int32 [step, part, row]: epochs, each shuffled anew."""
    generator = np.random.default_rng(seed)
    num_epochs = -(-num_steps * workload.batch_size // num_examples)
    order = np.concatenate([generator.permutation(num_examples) for _ in range(num_epochs)])
    order = order[: num_steps * workload.batch_size].astype(np.int32)
    return order.reshape(num_steps, num_parts, workload.batch_size // num_parts)


def digits_model() -> keras.Model:
    """Returns the network of examples/digits.py without its dropout: 85,000 parameters."""
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.Conv2D(64, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ]
    )


def digits_data() -> Data:
    """Returns the digits that come with scikit-learn, one half to train on and the other to test on."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)  # float64 [1797, 64], int64 [1797]
    order = np.random.default_rng(0).permutation(len(pixels))
    images = (pixels[order] / 16).astype(np.float32).reshape(-1, 8, 8, 1)
    labels, half = labels[order].astype(np.int32), len(pixels) // 2
    return Data(images[:half], labels[:half], images[half:], labels[half:])


def digits_optimizer(name: str, num_steps: int) -> keras.Optimizer:
    """Returns SGD whose learning rate falls to 0; without momentum for "dgc", which has its own."""
    learning_rate = keras.optimizers.schedules.CosineDecay(0.05, num_steps)
    return keras.optimizers.SGD(learning_rate, momentum=0.0 if name.startswith("dgc") else 0.9)


def transformer_model() -> keras.Model:
    """Returns a causal transformer on characters, of 120,000 parameters.

    Characters and positions enter as one-hot vectors through one dense kernel, since the gradient of an `Embedding`
    is sparse, and sparse gradients are not compressed.
    """
    tokens = keras.Input((CONTEXT,), dtype="int32")
    positions = keras.ops.cumsum(keras.ops.ones_like(tokens), axis=1) - 1
    vectors = [keras.ops.one_hot(tokens, VOCABULARY), keras.ops.one_hot(positions, CONTEXT)]
    x = keras.layers.Dense(WIDTH, use_bias=False)(keras.layers.Concatenate()(vectors))
    for _ in range(NUM_BLOCKS):
        normed = keras.layers.LayerNormalization()(x)
        x += keras.layers.MultiHeadAttention(NUM_HEADS, WIDTH // NUM_HEADS)(normed, normed, use_causal_mask=True)
        hidden = keras.layers.Dense(4 * WIDTH, activation="relu")(keras.layers.LayerNormalization()(x))
        x += keras.layers.Dense(WIDTH)(hidden)
    logits = keras.layers.Dense(VOCABULARY)(keras.layers.LayerNormalization()(x))
    return keras.Model(tokens, logits)


def transformer_data() -> Data:
    """Returns the texts of Python's `help`, cut into windows of characters; every tenth is for validation."""
    topics = pydoc_data.topics.topics
    text = "\n\n".join(topics[name] for name in sorted(topics))
    codes = np.frombuffer(text.encode("ascii", errors="replace"), np.uint8).astype(np.int32)
    windows = codes[: len(codes) // (CONTEXT + 1) * (CONTEXT + 1)].reshape(-1, CONTEXT + 1)
    is_validation = np.arange(len(windows)) % 10 == 0
    training, validation = windows[~is_validation], windows[is_validation]
    validation = validation[np.linspace(0, len(validation) - 1, NUM_VALIDATION_WINDOWS).astype(int)]
    return Data(training[:, :-1], training[:, 1:], validation[:, :-1], validation[:, 1:])


def adam(beta_1: float) -> Callable[[str, int], keras.Optimizer]:
    """Returns what makes Adam whose learning rate rises and falls to 0, whatever the compressor."""

    def optimizer(name: str, num_steps: int) -> keras.Optimizer:
        del name
        learning_rate = keras.optimizers.schedules.CosineDecay(
            0.0, num_steps, warmup_target=0.008, warmup_steps=num_steps // 10
        )
        return keras.optimizers.Adam(learning_rate, beta_1=beta_1)

    return optimizer


TRANSFORMER = Workload(
    transformer_model,
    transformer_data,
    adam(0.9),
    "loss",
    4000,
    20,
    32,
    2,
    left_out={"dgc": "it puts momentum into the gradients, which Adam would do once more"},
)
WORKLOADS = {
    "digits": Workload(digits_model, digits_data, digits_optimizer, "accuracy", 300, 20, 64, 4),
    "transformer": TRANSFORMER,
    "transformer without momentum": TRANSFORMER._replace(
        optimizer=adam(0.0),
        left_out={},
        only=("sign", "tern_grad", "topk:0.01", "randomk:0.1", "dgc", "powersgd:4"),
        reference="transformer",
        note="`none` has Adam's momentum (`beta_1=0.9`), the others have none (`beta_1=0`)",
    ),
}
