"""What tfdp runs on: the supported versions of Python, TensorFlow and Keras, checked before a strategy is made."""

import importlib.metadata
import os
import sys

PYTHON = ((3, 10), (3, 13))
TENSORFLOW = ((2, 18), (2, 21))
KERAS = ((3, 8), (3, 15))


def check() -> None:
    """Raises a RuntimeError that says what to do where this process cannot run tfdp.

    Raises:
        RuntimeError: Python, TensorFlow or Keras are outside the supported versions, Keras uses another backend than
            TensorFlow, or `tf.keras` has been switched to the legacy tf_keras.
    """
    check_range("Python", ".".join(map(str, sys.version_info[:3])), PYTHON)
    check_range("TensorFlow", importlib.metadata.version(_tensorflow_distribution()), TENSORFLOW)
    check_range("Keras", importlib.metadata.version("keras"), KERAS)
    import keras

    check_backend(keras.backend.backend())
    check_legacy_keras(os.environ.get("TF_USE_LEGACY_KERAS", ""))


def check_range(name: str, version: str, supported: tuple[tuple[int, int], tuple[int, int]]) -> None:
    """Raises a RuntimeError unless `version` ("2.21.0") lies in `supported` ((2, 18), (2, 21)), ends included."""
    lowest, highest = supported
    if not lowest <= release(version) <= highest:
        span = f"{lowest[0]}.{lowest[1]} to {highest[0]}.{highest[1]}"
        remedy = "" if name == "Python" else f' Install one with: pip install "{name.lower()}>={lowest[0]}.{lowest[1]}'
        remedy += "" if name == "Python" else f',<{highest[0]}.{highest[1] + 1}"'
        raise RuntimeError(f"tfdp supports {name} {span}. Found: {name} {version}.{remedy}")


def release(version: str) -> tuple[int, int]:
    """Returns the first two numbers of a version: (2, 21) for "2.21.0"."""
    major, minor = (int("".join(c for c in part if c.isdigit()) or 0) for part in (version + ".0").split(".")[:2])
    return major, minor


def check_backend(backend: str) -> None:
    """Raises a RuntimeError unless Keras runs on TensorFlow."""
    if backend != "tensorflow":
        raise RuntimeError(
            f"tfdp needs Keras on the TensorFlow backend. Found: the {backend!r} backend. "
            "Set KERAS_BACKEND=tensorflow in the environment before Keras is imported."
        )


def check_legacy_keras(setting: str) -> None:
    """Raises a RuntimeError where `setting` (the value of TF_USE_LEGACY_KERAS) turns `tf.keras` into tf_keras."""
    if setting.lower() in ("1", "true"):
        raise RuntimeError(
            f"tfdp works with Keras 3. Found: TF_USE_LEGACY_KERAS={setting}, which turns tf.keras into tf_keras "
            "(Keras 2). Unset it, and build the model with keras."
        )


def check_function(function: object) -> None:
    """Raises a TypeError where `function`, about to run on the replicas, comes from tf_keras (Keras 2)."""
    python_function = getattr(function, "python_function", function)
    module = getattr(python_function, "__module__", None) or ""
    if module.split(".")[0] == "tf_keras":
        raise TypeError(
            "tfdp trains Keras 3 models. Received: a model of tf_keras (Keras 2). "
            "Build it with keras (import keras), or train it under TensorFlow's own strategies."
        )


def _tensorflow_distribution() -> str:
    """Returns the name under which TensorFlow is installed: there are builds with names of their own."""
    for name in ("tensorflow", "tensorflow-cpu", "tensorflow-intel", "tensorflow-macos", "tf-nightly"):
        try:
            importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        return name
    raise RuntimeError("tfdp needs TensorFlow, and none is installed. Install it with: pip install tensorflow")
