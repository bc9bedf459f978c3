"""Imports of tfdp go down only, and the private names of TensorFlow and Keras stay in the seams."""

import ast
import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "tfdp"

# A room is a module or a folder directly under tfdp/. It imports rooms of lower floors.
FLOORS = {
    "topology": 0,
    "buckets": 0,
    "schedules": 0,
    # What all floors above may lean on, and topology, buckets and schedules do without.
    "versions": 0.5,
    "carrying": 0.5,
    "words": 0.5,
    "tf_seam": 0.5,
    "collectives": 1,
    "compression": 1,
    "agreement": 1,
    "deadline": 1,
    "watchdog": 1,
    "routing": 1.5,
    "sparse": 1.5,
    "topology_all_reduce": 1.5,
    "traffic": 1.5,
    "compression_state": 1.5,
    "progress": 1.5,
    "shares": 1.5,
    "reducer": 2,
    "strategies": 3,
    "keras_seam": 3,
    "calls": 3,
    "data": 3,
    "callbacks": 3,
    "monitoring": 3,
    # The public face, tfdp/__init__.py: it offers everything below, and only what runs tfdp looks at it.
    "__init__": 3.5,
    "cli": 4,
    "__main__": 5,
}
# Floors whose rooms may also import each other, as long as no cycle comes of it.
SIDEWAYS = {0.5, 3}
SEAMS = {"tf_seam", "keras_seam"}
FRAMEWORKS = {"tensorflow", "keras", "tf_keras"}
PRIVATE_MODULE = re.compile(r"(tensorflow\.python|keras\.src|tensorflow\.__internal__)(\.\w+)*")


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def room_of_file(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def package_of_file(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).parent.parts)


def imports_of(source: str, package: str) -> set[str]:
    """Returns the absolute dotted names that `source`, a module of `package`, imports anywhere, for a type checker too.

    `from a import b` gives "a.b": whether b is a module or a name inside a, a is the beginning of it.
    """
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            names |= {f"{base}.{alias.name}" for alias in node.names}
    return names


def rooms_imported(names: set[str]) -> set[str]:
    """Returns the rooms of tfdp that the dotted `names` lie in; what tfdp itself exports lies in its `__init__`."""
    firsts = {name.split(".")[1] if "." in name else "__init__" for name in names if name.split(".")[0] == "tfdp"}
    rooms = FLOORS.keys() | {room_of_file(path) for path in modules()}
    return {first if first in rooms else "__init__" for first in firsts}


def broken_rules(room: str, names: set[str]) -> list[str]:
    """Returns what is wrong with a module of `room` that imports `names`."""
    unknown = sorted({room, *rooms_imported(names)} - FLOORS.keys())
    if unknown:
        return [f"tfdp/{name} has no floor: add it to FLOORS in tests/test_layers.py" for name in unknown]
    floor = FLOORS[room]
    wrong = [
        f"tfdp.{room} (floor {floor}) imports tfdp.{other} (floor {FLOORS[other]}): imports go down only"
        for other in sorted(rooms_imported(names) - {room})
        if not (FLOORS[other] < floor or (FLOORS[other] == floor and floor in SIDEWAYS))
    ]
    if floor == 0:
        used = sorted({name.split(".")[0] for name in names} & FRAMEWORKS)
        wrong += [f"tfdp.{room} imports {name}: floor 0 is pure Python" for name in used]
    return wrong


def private_names(source: str) -> list[str]:
    """Returns the uses of private names of TensorFlow and Keras in `source`, each with its line."""
    found = [(0, name) for name in imports_of(source, "tfdp") if PRIVATE_MODULE.match(name)]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and (
            node.attr == "__internal__" or ast.unparse(node) in ("keras.src", "tf.python", "tensorflow.python")
        ):
            found.append((node.lineno, ast.unparse(node)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and PRIVATE_MODULE.fullmatch(node.value):
            found.append((node.lineno, repr(node.value)))  # importlib.import_module("keras.src.optimizers")
    return [f"line {line}: {name}" if line else f"import of {name}" for line, name in sorted(found)]


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE.parent)))
def test_a_module_imports_only_what_lies_below_it(path):
    names = imports_of(path.read_text(encoding="utf-8"), package_of_file(path))
    broken = broken_rules(room_of_file(path), names)
    assert not broken, "\n".join(broken)


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE.parent)))
def test_private_names_of_tensorflow_and_keras_appear_only_in_the_seams(path):
    if room_of_file(path) not in SEAMS:
        assert not private_names(path.read_text(encoding="utf-8")), "belongs in tfdp/tf_seam.py or tfdp/keras_seam.py"


def test_rooms_of_one_floor_import_each_other_without_a_cycle():
    graph: dict[str, set[str]] = {}
    for path in modules():
        names = imports_of(path.read_text(encoding="utf-8"), package_of_file(path))
        graph.setdefault(room_of_file(path), set()).update(rooms_imported(names) - {room_of_file(path)})
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"rooms of tfdp import each other in a circle: {' -> '.join(error.args[1])}")


def test_the_package_is_found():
    assert PACKAGE / "__init__.py" in modules()


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import tfdp.reducer as r", {"tfdp.reducer"}),
        ("from tfdp.reducer import GradientReducer", {"tfdp.reducer.GradientReducer"}),
        ("from . import codecs", {"tfdp.compression.codecs"}),
        ("from ..buckets import assign", {"tfdp.buckets.assign"}),
        ("def late():\n    from .. import topology", {"tfdp.topology"}),
        ("if TYPE_CHECKING:\n    from tfdp import reducer", {"tfdp.reducer"}),
    ],
)
def test_every_form_of_import_is_seen(source, expected):
    assert imports_of(source, "tfdp.compression") == expected


@pytest.mark.parametrize(
    ("room", "name"),
    [
        ("reducer", "tfdp.compression.top_k"),
        ("collectives", "tfdp.tf_seam.all_reduce"),
        ("strategies", "tfdp.keras_seam"),
        ("tf_seam", "tfdp.versions"),
        ("cli", "tfdp.__version__"),
        ("cli", "tfdp.topology.hostlists.expand"),
        ("topology", "tfdp.topology.cluster.Cluster"),
        ("compression", "tensorflow"),
    ],
)
def test_an_import_that_goes_down_is_fine(room, name):
    assert broken_rules(room, {name}) == []


@pytest.mark.parametrize(
    ("room", "name", "message"),
    [
        ("reducer", "tfdp.strategies.MirroredStrategy", "imports go down only"),
        ("collectives", "tfdp.compression", "imports go down only"),
        ("compression", "tfdp.collectives.Communicator", "imports go down only"),
        ("buckets", "tfdp.topology", "imports go down only"),
        ("buckets", "tfdp.versions", "imports go down only"),
        ("tf_seam", "tfdp.collectives", "imports go down only"),
        ("data", "tfdp.MirroredStrategy", "imports go down only"),
        ("data", "tfdp", "imports go down only"),
        ("topology", "tensorflow.io.gfile", "floor 0 is pure Python"),
        ("topology", "tfdp.agreement.Agreement", "imports go down only"),
        ("topology", "tfdp.Topology", "imports go down only"),
        ("attic", "os", "tfdp/attic has no floor: add it to FLOORS"),
    ],
)
def test_an_import_that_breaks_a_rule_is_named(room, name, message):
    (complaint,) = broken_rules(room, {name})
    assert message in complaint


@pytest.mark.parametrize(
    "source",
    [
        "import tensorflow.python.eager.context",
        "from tensorflow.python import distribute",
        "from tensorflow import python",
        "from keras.src.backend import config",
        "from keras import src",
        "import tensorflow as tf\ntf.__internal__.distribute.combinations",
        "import keras\nkeras.src.optimizers",
        "importlib.import_module('keras.src.optimizers')",
    ],
)
def test_every_form_of_private_name_is_seen(source):
    assert private_names(source)


def test_public_names_and_docstrings_are_no_private_names():
    assert not private_names('"""As keras.src.optimizers does."""\nimport keras\nfrom tensorflow.keras import layers')
