"""The private names of TensorFlow and Keras that tfdp leans on are there, and all of them are in the tables below."""

import ast
import functools
import importlib
import inspect
import re

import keras
import pytest
import tensorflow as tf
import trainings
from integration import workers

import tfdp
from tfdp import keras_seam, tf_seam

# What tfdp/tf_seam.py and tfdp/keras_seam.py use, by module: names, and names within classes. What tfdp replaces in
# Keras is in a table of its own, keras_seam.PRIVATE_NAMES, which tfdp checks itself.
NAMES = {
    "tensorflow.python.distribute.collective_all_reduce_strategy": [
        "CollectiveAllReduceExtended._get_local_replica_id",
        "CollectiveAllReduceExtended._get_variable_creator_initial_value",
        "CollectiveAllReduceExtended._initialize_local",
        "CollectiveAllReduceExtended._initialize_local_devices",
        "CollectiveAllReduceExtended._initialize_multi_worker",
        "CollectiveAllReduceExtended._initialize_strategy",
        "CollectiveAllReduceExtended._replica_ctx_all_reduce",
        "CollectiveAllReduceStrategy._collective_key_base",
    ],
    "tensorflow.python.distribute.cross_device_ops": [
        "CollectiveAllReduce._all_reduce",
        "CollectiveAllReduce._all_reduce_per_replica_values",
        "CollectiveAllReduce._batch_all_gather",
        "CollectiveAllReduce._num_between_graph_workers",
        "get_devices_from",
    ],
    "tensorflow.python.distribute.cross_device_utils": [
        "CollectiveKeys.get_group_key",
        "CollectiveKeys.get_instance_key",
        "CollectiveReplicaLauncher._all_gather",
        "CollectiveReplicaLauncher._next_instance_key",
        "CollectiveReplicaLauncher.all_gather",
        "CollectiveReplicaLauncher.all_reduce",
        "aggregate_tensors_or_indexed_slices",
        "copy_tensor_or_indexed_slices_to_device",
        "divide_by_n_tensors_or_indexed_slices",
    ],
    "tensorflow.python.distribute.device_util": ["canonicalize"],
    "tensorflow.python.distribute.distribute_lib": [
        "StrategyExtendedV2._replica_ctx_all_reduce",
        "UpdateContext",
    ],
    "tensorflow.python.distribute.distribute_utils": ["regroup"],
    "tensorflow.python.distribute.input_lib": ["DistributedDatasetsFromFunction"],
    "tensorflow.python.distribute.mirrored_strategy": [
        "MirroredExtended._create_variable",
        "MirroredExtended._get_local_replica_id",
        "MirroredExtended._batch_reduce_to",
        "MirroredExtended._get_cross_device_ops",
        "MirroredStrategy._collective_key_base",
    ],
    "tensorflow.python.distribute.multi_worker_util": ["coordination_leader"],
    "tensorflow.python.distribute.values": [
        "DistributedVariable._get_replica",
        "DistributedValues",
        "Mirrored",
        "MirroredVariable",
    ],
    "tensorflow.python.eager.context": [
        "Context.abort_collective_ops",
        "Context.configure_coordination_service",
        "Context.delete_config_key_value",
        "Context.get_config_key_value",
        "Context.set_config_key_value",
        "context",
    ],
    "tensorflow.python.eager.execute": ["quick_execute"],
    "tensorflow.python.framework.ops": ["get_default_graph"],
    "tensorflow.python.ops.collective_ops": [
        "all_gather_v2",
        "all_reduce_v2",
        "all_to_all_v2",
        "broadcast_recv",
        "broadcast_recv_v2",
        "broadcast_send",
        "broadcast_send_v2",
    ],
    "tensorflow.python.ops.resource_variable_ops": ["ResourceVariable"],
    "keras.src.layers.layer": ["Layer._flatten_layers"],
    "keras.src.trainers.data_adapters.data_adapter": ["DataAdapter"],
    "tensorflow.python.data.ops.dataset_ops": [
        "DatasetV2._as_serialized_graph",
        "DatasetV2._functions",
        "DatasetV2._inputs",
        "_OptionsDataset",
        "_RestructuredDataset",
    ],
}

# Attributes that an object has only once it is made, by the class (or one of its bases) whose methods set them.
ATTRIBUTES = {
    "tensorflow.python.distribute.collective_all_reduce_strategy.CollectiveAllReduceExtended": [
        "_collective_keys",
        "_communication_options",
        "_cross_device_ops",
        "_enable_check_health",
        "_host_cross_device_ops",
        "_id_in_cluster",
        "_is_chief",
        "_local_device_type",
        "_num_workers",
        "_std_server_started",
    ],
    "tensorflow.python.distribute.cross_device_ops.CollectiveAllReduce": [
        "_devices",
        "_group_size",
        "_launchers",
        "_lock",
        "_options",
    ],
    "tensorflow.python.distribute.cross_device_utils.CollectiveReplicaLauncher": [
        "_device",
        "_group_key",
        "_group_size",
        "_ordering_token",
    ],
    "tensorflow.python.eager.context.Context": ["_collective_ops_server_def", "_context_handle", "_seed"],
    "tensorflow.python.framework.func_graph.FuncGraph": ["building_function", "outer_graph"],
    "tensorflow.python.ops.resource_variable_ops.BaseResourceVariable": ["_unique_id"],
    "tensorflow.python.distribute.values.PerReplicaSpec": ["_value_specs"],
    "keras.src.backend.tensorflow.optimizer.TFOptimizer": [
        "_accumulated_gradients",
        "_distribution_strategy",
        "_iterations",
        "_model_variables_moving_average",
        "_trainable_variables",
    ],
    "keras.src.backend.tensorflow.trainer.TensorFlowTrainer": ["_distribute_strategy", "_initial_epoch"],
    "keras.src.backend.tensorflow.trainer.TFEpochIterator": [
        "_current_iterator",
        "_distributed_dataset",
        "_num_batches",
        "_steps_seen",
    ],
    "keras.src.trainers.data_adapters.array_data_adapter.ArrayDataAdapter": ["_inputs"],
    "tensorflow.python.data.ops.shuffle_op._ShuffleDataset": [
        "_buffer_size",
        "_reshuffle_each_iteration",
        "_seed",
        "_seed2",
    ],
    "tensorflow.python.data.ops.random_op._RandomDataset": ["_seed", "_seed2"],
    "tensorflow.python.data.ops.filter_op._FilterDataset": ["_predicate"],
    "tensorflow.python.data.ops.take_while_op._TakeWhileDataset": ["_predicate"],
    "tensorflow.python.data.ops.take_op._TakeDataset": ["_count"],
    "tensorflow.python.data.ops.skip_op._SkipDataset": ["_count"],
    "tensorflow.python.data.ops.repeat_op._RepeatDataset": ["_count"],
    "tensorflow.python.data.ops.shard_op._ShardDataset": ["_index", "_num_shards"],
    "tensorflow.python.data.ops.unbatch_op._UnbatchDataset": ["_input_dataset"],
    "tensorflow.python.data.ops.window_op._WindowDataset": ["_drop_remainder", "_shift", "_size", "_stride"],
    "tensorflow.python.data.ops.prefetch_op._PrefetchDataset": ["_buffer_size"],
    "tensorflow.python.data.ops.cache_op.CacheDataset": ["_filename"],
    "tensorflow.python.data.ops.flat_map_op._FlatMapDataset": ["_map_func"],
    "tensorflow.python.data.ops.interleave_op._InterleaveDataset": ["_block_length", "_cycle_length", "_map_func"],
    "tensorflow.python.data.ops.interleave_op._ParallelInterleaveDataset": [
        "_block_length",
        "_cycle_length",
        "_map_func",
        "_num_parallel_calls",
    ],
    "tensorflow.python.data.ops.zip_op._ZipDataset": ["_datasets"],
    "tensorflow.python.data.ops.unique_op._UniqueDataset": ["_input_dataset"],
    "tensorflow.python.data.experimental.ops.cardinality._AssertCardinalityDataset": ["_expected_cardinality"],
    "tensorflow.python.data.ops.group_by_window_op._GroupByWindowDataset": [
        "_key_func",
        "_reduce_func",
        "_window_size_func",
    ],
    "tensorflow.python.data.ops.concatenate_op._ConcatenateDataset": ["_input_dataset"],
    "tensorflow.python.data.ops.directed_interleave_op._DirectedInterleaveDataset": ["_stop_on_empty_dataset"],
    "tensorflow.python.data.ops.batch_op._BatchDataset": ["_batch_size", "_drop_remainder"],
    "tensorflow.python.data.ops.batch_op._ParallelBatchDataset": [
        "_batch_size",
        "_deterministic",
        "_drop_remainder",
        "_num_parallel_calls",
    ],
    "tensorflow.python.data.ops.padded_batch_op._PaddedBatchDataset": [
        "_batch_size",
        "_drop_remainder",
        "_padded_shapes",
        "_padding_values",
    ],
    "tensorflow.python.data.ops.map_op._MapDataset": ["_map_func"],
    "tensorflow.python.data.ops.map_op._ParallelMapDataset": ["_deterministic", "_map_func", "_num_parallel_calls"],
    "tensorflow.python.data.ops.structured_function.StructuredFunctionWrapper": ["_func"],
}


def found(module, name):
    """Returns whether `module` has `name`, which may be one within a class."""
    try:
        owner = importlib.import_module(module)
    except ImportError:
        return False
    for part in name.split("."):
        if not hasattr(owner, part):
            return False
        owner = getattr(owner, part)
    return True


def missing_names(table):
    """Returns a sentence for each name of `table` that is not there."""
    versions = {"tensorflow": tf.__version__, "keras": keras.__version__}
    return [
        f"{module}.{name} is gone in {library} {versions[library]}: mend tfdp/{seam}.py"
        for module, names in table.items()
        for library, seam in [(module.split(".")[0], "keras_seam" if module.startswith("keras") else "tf_seam")]
        for name in names
        if not found(module, name)
    ]


@pytest.mark.parametrize("module", NAMES)
def test_the_private_names_of_a_module_are_there(module):
    missing = missing_names({module: NAMES[module]})
    assert not missing, "\n".join(missing)


@pytest.mark.parametrize("owner", ATTRIBUTES)
def test_the_private_attributes_of_a_class_are_set_by_it(owner):
    missing = missing_attributes(owner, ATTRIBUTES[owner])
    assert not missing, f"{owner} no longer sets {', '.join(missing)}: mend the seam that uses it"


def missing_attributes(owner, attributes):
    """Returns those of `attributes` that neither a class nor its bases set."""
    module, _, name = owner.rpartition(".")
    if not found(module, name):
        return attributes
    made = getattr(importlib.import_module(module), name)
    text = "\n".join(map(source, made.__mro__))
    return [name for name in attributes if not hasattr(made, name) and not re.search(rf"self\.{name}\b.* = ", text)]


def source(owner):
    try:
        return inspect.getsource(owner)
    except (OSError, TypeError):  # what is not written in Python
        return ""


def test_a_copy_of_a_variable_leads_to_the_variable():
    with tfdp.MirroredStrategy().scope():
        variable = tf.Variable(1.0)
    (copy,) = variable.values
    missing = "copies of variables no longer have handle._distributed_container: mend tfdp/tf_seam.py"
    assert copy.handle._distributed_container() is variable, missing
    assert tf_seam.variable_key(copy) == tf_seam.variable_key(variable)
    assert tf_seam.variable_key(tf.Variable(1.0)) != tf_seam.variable_key(variable)


def test_the_module_of_the_cluster_s_messages_is_where_tensorflow_itself_has_it():
    module = "tensorflow.python.distribute.collective_all_reduce_strategy"
    assert found(module, "coordination_config_pb2.CoordinatedJob"), "it has moved: mend tfdp/tf_seam.py"


# Private names that the seams give to what is their own.
OWN = {
    "_cluster",
    "_caches",
    "_copies",
    "_data",
    "_dataset",
    "_getframe",
    "_instance_keys",
    "_key",
    "_key_for",
    "_keys",
    "_local_devices",
    "_made",
    "_next",
    "_noted_share",
    "_of_all",
    "_strategy",
    "_once",
    "_signature_of_key",
    "_step_function",
    "_trainer",
    "_trains",
    "_transform",
    "_uses",
    "_wanted_devices",
    "_with_instance_keys",
}
# Looked at by a test above.
DYNAMIC = {"_distributed_container"}


@pytest.mark.parametrize("seam", [tf_seam, keras_seam])
def test_every_private_attribute_that_a_seam_uses_is_in_the_tables(seam):
    listed = {name.split(".")[-1] for names in NAMES.values() for name in names}
    listed |= {name for table in (ATTRIBUTES, keras_seam.PRIVATE_NAMES) for names in table.values() for name in names}
    used = {node.attr for node in ast.walk(ast.parse(inspect.getsource(seam))) if isinstance(node, ast.Attribute)}
    private = {name for name in used if name.startswith("_") and not name.startswith("__")}
    assert private <= listed | OWN | DYNAMIC, "add these to NAMES or ATTRIBUTES of tests/test_seams.py"


@pytest.mark.parametrize("seam", [tf_seam, keras_seam])
def test_every_private_module_that_a_seam_imports_is_in_the_tables(seam):
    imported = set()
    for node in ast.walk(ast.parse(inspect.getsource(seam))):
        if isinstance(node, ast.ImportFrom) and node.module.startswith(("tensorflow.python", "keras.src")):
            imported |= {f"{node.module}.{alias.name}" for alias in node.names}
    checked = {owner.__module__ if inspect.isclass(owner) else owner.__name__ for owner in keras_seam.PRIVATE_NAMES}
    assert imported <= NAMES.keys() | checked, "add these to NAMES of tests/test_seams.py"


def test_what_tfdp_replaces_in_keras_is_there():
    keras_seam.check()


# What is said when a name is gone


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("tensorflow.python.distribute.cross_device_utils", "aggregate_tensors_or_indexed_slices"),
        ("tensorflow.python.distribute.cross_device_utils", "CollectiveReplicaLauncher._next_instance_key"),
        ("keras.src.layers.layer", "Layer._flatten_layers"),
    ],
)
def test_a_name_that_is_gone_is_named_with_the_version_and_the_seam(monkeypatch, module, name):
    owner = importlib.import_module(module)
    *path, last = name.split(".")
    for part in path:
        owner = getattr(owner, part)
    monkeypatch.delattr(owner, last)
    (complaint,) = missing_names({module: NAMES[module]})
    assert complaint.startswith(f"{module}.{name} is gone in {module.split('.')[0]} ")
    assert complaint.endswith("seam.py")


def test_an_attribute_that_is_gone_is_found():
    owner = "tensorflow.python.eager.context.Context"
    assert missing_attributes(owner, ["_context_handle", "_no_such_attribute"]) == ["_no_such_attribute"]
    assert missing_attributes("tensorflow.no_such_module.Context", ["_context_handle"]) == ["_context_handle"]


def test_a_name_of_keras_that_is_gone_is_said_before_anything_is_replaced(monkeypatch):
    optimizer = next(owner for owner in keras_seam.PRIVATE_NAMES if owner.__name__ == "TFOptimizer")
    monkeypatch.delattr(optimizer, "_all_reduce_sum_gradients")
    replaced = []
    monkeypatch.setattr(keras_seam, "_replace", lambda *arguments: replaced.append(arguments))
    install = functools.partial(keras_seam.install, lambda strategy: None, None, None)
    for function in (keras_seam.check, install, tfdp.MirroredStrategy):
        with pytest.raises(RuntimeError) as raised:
            function()
        assert f"names of Keras that Keras {keras.__version__} does not have" in str(raised.value)
        assert f"{optimizer.__module__}.TFOptimizer._all_reduce_sum_gradients" in str(raised.value)
        assert "Use a version of Keras that tfdp supports (3.8 to 3.15)" in str(raised.value)
    assert not replaced


def test_all_names_of_keras_that_are_gone_are_named(monkeypatch):
    (owner, names), *others = keras_seam.PRIVATE_NAMES.items()
    monkeypatch.setattr(keras_seam, "PRIVATE_NAMES", {owner: (*names, "_first_gone", "_second_gone"), **dict(others)})
    with pytest.raises(RuntimeError, match=r"_first_gone, .*_second_gone\."):
        keras_seam.check()


# What tfdp leaves alone

STOCK = """
import pathlib, sys
import tensorflow as tf
import trainings

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)
folder = pathlib.Path(sys.argv[1])
stock = tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])

def record(moment):
    for name in ("sgd_with_momentum", "clipnorm", "embedding"):
        for kind, strategy in (("stock", stock), ("none", None)):
            function = trainings.TRAININGS[name].function
            trainings.record(folder, f"{name} {kind} {moment}", lambda: function(strategy))

record("before")
assert "tfdp.strategies" not in sys.modules
import tfdp
trainings.embedding(tfdp.MirroredStrategy(["/cpu:0", "/cpu:1"]))
record("after")
"""


@pytest.fixture(scope="module")
def stock_results(tmp_path_factory):
    """The folder of what trainings returned without tfdp's strategies, before and after one was used."""
    folder = tmp_path_factory.mktemp("stock")
    ended = workers.finish([workers.start(STOCK, folder)], deadline_seconds=200.0)
    assert ended[0].status == 0, workers.report(ended)
    return folder


@pytest.mark.parametrize("kind", ["stock", "none"])
@pytest.mark.parametrize("name", ["sgd_with_momentum", "clipnorm", "embedding"])
def test_training_without_a_strategy_of_tfdp_gives_the_same_bits_after_one_was_used(stock_results, name, kind):
    before, after = (trainings.recorded(stock_results, f"{name} {kind} {moment}") for moment in ("before", "after"))
    assert before.keys() == after.keys()
    assert all(before[array].tobytes() == after[array].tobytes() for array in before)
