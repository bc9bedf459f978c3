"""The environment that TensorFlow and Keras read at import, set before any test imports them."""

import os

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


def pytest_configure():
    import quick_iterators  # after the environment is set

    quick_iterators.use()
