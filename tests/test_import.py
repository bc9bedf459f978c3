"""Importing tfdp prints nothing of its own, starts nothing and reads no environment."""

import re

import pytest
from integration import workers

RUNTIME = """
import json, os, warnings

import keras, tensorflow as tf
from tensorflow.python.eager import context

# TensorFlow and Keras have said what they say at import; what comes now is tfdp's.
print("<tfdp>", flush=True)
os.environ["TF_CONFIG"] = "no json"
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import tfdp
    import tfdp.collectives, tfdp.compression, tfdp.reducer, tfdp.topology
    tfdp.MirroredStrategy, tfdp.MultiWorkerMirroredStrategy
    dir(tfdp)
print("</tfdp>", flush=True)
for warning in caught:
    if "tfdp" in warning.filename:
        print("<warning>", warning)

def report(name):
    print(f"<{name}>{context.context()._initialized}</{name}>")

report("imported")
peer = json.dumps({"cluster": {"worker": ["127.0.0.1:1", "127.0.0.1:2"]}, "task": {"type": "worker", "index": 1}})
os.environ["TF_CONFIG"] = peer
assert tfdp.topology.cluster_from_environment(os.environ).rank == 1
tfdp.compression.get("bf16")
report("parsed")

def refused(make, **options):
    try:
        make(**options)
    except (TypeError, ValueError):
        return
    raise AssertionError(f"{options} were taken")

for make in (tfdp.MirroredStrategy, tfdp.MultiWorkerMirroredStrategy):
    refused(make, compression="nothing")
    refused(make, bucket_bytes=0)
refused(tfdp.MultiWorkerMirroredStrategy, start_timeout_seconds=-1)
os.environ["TF_CONFIG"] = peer.replace('"index": 1', '"index": 9')
refused(tfdp.MultiWorkerMirroredStrategy)
report("refused")
"""
# As `tfdp run` is started: the command line alone, and all of its modules that the launcher needs.
LAUNCHER = """
import sys
from tfdp.cli import main, launcher
heavy = sorted({"tensorflow", "keras", "tf_keras", "numpy"} & set(sys.modules))
print(f"<heavy>{heavy}</heavy>")
"""


def ended(program):
    (process,) = workers.finish([workers.start(program, TF_CPP_MIN_LOG_LEVEL="3")], deadline_seconds=120.0)
    assert process.status == 0, workers.report([process])
    return process.output


@pytest.fixture(scope="module")
def runtime():
    """What a process printed that imported all of tfdp, step by step."""
    return ended(RUNTIME)


def between(name, output):
    return re.search(f"<{name}>(.*)</{name}>", output, re.DOTALL).group(1)


def test_import_passes_with_warnings_as_errors_and_prints_nothing():
    (process,) = workers.finish([workers.start("import tfdp", PYTHONWARNINGS="error")], deadline_seconds=60.0)
    assert (process.status, process.output) == (0, "")


def test_importing_every_public_name_prints_and_warns_nothing(runtime):
    assert between("tfdp", runtime).strip() == ""
    assert "<warning>" not in runtime


@pytest.mark.parametrize("moment", ["imported", "parsed", "refused"])
def test_tensorflow_stays_untouched(runtime, moment):
    assert between(moment, runtime) == "False"


def test_the_launcher_starts_without_tensorflow():
    assert between("heavy", ended(LAUNCHER)) == "[]"


def test_an_unknown_name_is_refused_with_those_that_there_are():
    import tfdp

    with pytest.raises(AttributeError, match="It has MirroredStrategy, MultiWorkerMirroredStrategy"):
        tfdp.ParameterServerStrategy  # noqa: B018


def test_every_public_name_is_listed_and_there():
    import tfdp

    assert set(tfdp.__all__) <= set(dir(tfdp))
    for name in tfdp.__all__:
        assert getattr(tfdp, name)
