"""The cluster that TF_CONFIG describes."""

import json

from tfdp.topology.cluster import Cluster, make_cluster


def cluster_of_tf_config(text: str) -> Cluster | None:
    """Returns the cluster that `text`, the value of TF_CONFIG, describes, or None where it describes none.

    TF_CONFIG is read as services really write it: empty lists of tasks and unknown keys are ignored, an index may be a
    string, the old role "master" counts as "chief".

    Raises:
        ValueError: TF_CONFIG is no JSON object, names no task, an index out of range, an address without a port, or a
            role that does not train.
    """
    text = text.strip()
    if not text:
        return None
    try:
        config = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"TF_CONFIG must be JSON. Received: TF_CONFIG={text!r} ({error}).") from error
    if not isinstance(config, dict):
        raise ValueError(f"TF_CONFIG must be a JSON object with 'cluster' and 'task'. Received: TF_CONFIG={text!r}.")
    if "sparseCluster" in config and not config.get("cluster"):
        raise ValueError(
            "TF_CONFIG must list all workers under 'cluster'; 'sparseCluster' names only some. "
            f"Received: TF_CONFIG={text!r}."
        )
    cluster = config.get("cluster") or {}
    task = config.get("task") or {}
    if not isinstance(cluster, dict) or not isinstance(task, dict):
        raise ValueError(f"In TF_CONFIG 'cluster' and 'task' must be JSON objects. Received: TF_CONFIG={text!r}.")
    if not any(cluster.values()):
        return None
    return make_cluster(cluster, task.get("type"), task.get("index"), source=f"TF_CONFIG={text!r}")
