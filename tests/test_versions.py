"""What tfdp runs on, and what it says where it cannot."""

import configparser
import importlib.metadata
import sys
from pathlib import Path

import keras
import pytest

from tfdp import versions

REPOSITORY = Path(__file__).resolve().parent.parent


def complaint(function, *arguments, kind=RuntimeError):
    with pytest.raises(kind) as raised:
        function(*arguments)
    return str(raised.value)


@pytest.fixture
def installed(monkeypatch):
    """Returns a function that makes a package look as if another version of it, or none, were installed."""
    real = importlib.metadata.version
    pretended = {}

    def version(name):
        found = pretended.get(name, "real")
        if found is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return real(name) if found == "real" else found

    monkeypatch.setattr(importlib.metadata, "version", version)
    return pretended.update


@pytest.fixture(autouse=True)
def no_legacy_keras(monkeypatch):
    monkeypatch.delenv("TF_USE_LEGACY_KERAS", raising=False)


def test_what_runs_these_tests_is_supported():
    versions.check()


@pytest.mark.parametrize("version", ["2.18.0", "2.18", "2.19.1", "2.21.0", "2.21.0rc1", "2.20.0.dev20250801", "2.21"])
def test_a_version_within_the_range_passes(version):
    versions.check_range("TensorFlow", version, ((2, 18), (2, 21)))


@pytest.mark.parametrize("version", ["2.17.1", "2.9.0", "2.22.0", "2.100.0", "1.15.0", "3.0.0", "3.19", "2", "2.2.18"])
def test_a_version_outside_the_range_is_refused_with_the_command_that_helps(version):
    message = complaint(versions.check_range, "TensorFlow", version, ((2, 18), (2, 21)))
    assert message == (
        f"tfdp supports TensorFlow 2.18 to 2.21. Found: TensorFlow {version}. "
        'Install one with: pip install "tensorflow>=2.18,<2.22"'
    )


def test_another_python_is_refused_without_a_pip_command():
    message = complaint(versions.check_range, "Python", "3.9.1", versions.PYTHON)
    assert message == "tfdp supports Python 3.10 to 3.13. Found: Python 3.9.1."


def test_check_looks_at_the_running_python(monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 9, 1, "final", 0))
    assert "Found: Python 3.9.1" in complaint(versions.check)


@pytest.mark.parametrize(
    ("package", "version", "message"),
    [
        ("tensorflow", "2.16.2", 'pip install "tensorflow>=2.18,<2.22"'),
        ("keras", "2.15.0", 'pip install "keras>=3.8,<3.16"'),
        ("keras", "3.7.0", "tfdp supports Keras 3.8 to 3.15. Found: Keras 3.7.0"),
        ("keras", "3.16.0", "tfdp supports Keras 3.8 to 3.15. Found: Keras 3.16.0"),
    ],
)
def test_check_looks_at_what_is_installed(installed, package, version, message):
    installed({package: version})
    assert message in complaint(versions.check)


def test_builds_of_tensorflow_with_other_names_count(installed):
    installed({"tensorflow": None, "tensorflow-cpu": "2.20.0"})
    versions.check()
    installed({"tensorflow-cpu": "2.16.0"})
    assert "Found: TensorFlow 2.16.0" in complaint(versions.check)


def test_no_tensorflow_at_all_is_said(installed):
    names = ("tensorflow", "tensorflow-cpu", "tensorflow-intel", "tensorflow-macos", "tf-nightly")
    installed(dict.fromkeys(names))
    assert "pip install tensorflow" in complaint(versions.check)


@pytest.mark.parametrize(("package", "supported"), [("tensorflow", versions.TENSORFLOW), ("keras", versions.KERAS)])
def test_the_ranges_are_those_that_pip_is_told(package, supported):
    setup = configparser.ConfigParser()
    setup.read(REPOSITORY / "setup.cfg")
    (lowest, highest), required = supported, setup["options"]["install_requires"].split()
    assert f"{package}>={lowest[0]}.{lowest[1]},<{highest[0]}.{highest[1] + 1}" in required


@pytest.mark.parametrize("backend", ["jax", "torch", "numpy"])
def test_another_backend_is_refused(monkeypatch, backend):
    monkeypatch.setattr(keras.backend, "backend", lambda: backend)
    message = complaint(versions.check)
    assert f"Found: the {backend!r} backend" in message
    assert "Set KERAS_BACKEND=tensorflow in the environment before Keras is imported" in message


@pytest.mark.parametrize("setting", ["1", "true", "True"])
def test_legacy_keras_is_refused(monkeypatch, setting):
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", setting)
    message = complaint(versions.check)
    assert f"Found: TF_USE_LEGACY_KERAS={setting}" in message
    assert "Unset it" in message


@pytest.mark.parametrize("setting", ["", "0", "false"])
def test_legacy_keras_switched_off_is_fine(monkeypatch, setting):
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", setting)
    versions.check()


def function_of(module):
    def train_step(iterator):
        del iterator

    train_step.__module__ = module
    return train_step


@pytest.mark.parametrize("module", ["tf_keras.src.engine.training", "tf_keras"])
def test_the_training_step_of_tf_keras_is_refused(module):
    message = complaint(versions.check_function, function_of(module), kind=TypeError)
    assert "Received: a model of tf_keras (Keras 2)" in message
    assert "import keras" in message


def test_a_tf_function_of_tf_keras_is_refused_too():
    class Function:
        python_function = staticmethod(function_of("tf_keras.src.engine.training"))

    assert "tf_keras" in complaint(versions.check_function, Function(), kind=TypeError)


@pytest.mark.parametrize("function", [function_of("keras.src.trainers"), function_of("tf_keras_tools"), len, object()])
def test_every_other_function_passes(function):
    versions.check_function(function)
