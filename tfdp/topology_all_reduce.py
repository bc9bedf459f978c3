"""Cross-device operations for those who keep TensorFlow's own MirroredStrategy."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdp import tf_seam
from tfdp import topology as topology_lib
from tfdp.collectives import Copies, handed_down, specs_of, summed_up
from tfdp.topology import Topology


class TopologyAllReduce(tf.distribute.ReductionToOneDevice):
    """Adds up where links are fast first, then over slow ones, and hands out copies by the same way.

    Takes any number of devices, tensors of any dtype that can be added, and several at once. Values that do not lie on
    the replicas' devices, and sparse ones, are reduced as by `tf.distribute.ReductionToOneDevice`.

    Example:
        >>> import tensorflow as tf, tfdp
        >>> islands = tfdp.Topology.from_hosts(["left", "left", "right"])
        >>> strategy = tf.distribute.MirroredStrategy(
        ...     ["/cpu:0", "/cpu:1", "/cpu:2"], cross_device_ops=tfdp.TopologyAllReduce(islands)
        ... )  # doctest: +SKIP
    """

    def __init__(self, topology: Topology, *, algorithm: str = "auto") -> None:
        """Adds up by a topology.

        Args:
            topology: where the replicas are, or which have fast links to each other: as hosts or as islands.
            algorithm: "auto", "flat", "hierarchical" or "tree"; see docs/topology.md.

        Raises:
            TypeError: `topology` is none.
            ValueError: `algorithm` is unknown.
        """
        if not isinstance(topology, Topology):
            raise TypeError(f"`topology` must be a tfdp.Topology. Received: {topology!r}.")
        super().__init__(accumulation_fn=tf_seam.sum_in_order)
        self._plan = topology_lib.plan(topology, algorithm)

    def reduce_implementation(self, reduce_op: Any, per_replica_value: Any, destinations: Any, options: Any) -> Any:
        """Reduces one value; see tf.distribute.CrossDeviceOps."""
        return self.batch_reduce_implementation(reduce_op, [(per_replica_value, destinations)], options)[0]

    def batch_reduce_implementation(
        self, reduce_op: Any, value_destination_pairs: Sequence[tuple[Any, Any]], options: Any
    ) -> list[Any]:
        """Reduces several values, each to where it is; see tf.distribute.CrossDeviceOps.

        Raises:
            ValueError: there are more or fewer replicas than the topology has.
        """
        reduced = []
        for i, (value, destinations) in enumerate(value_destination_pairs):
            num_replicas = tf_seam.num_replicas_of(value)
            if num_replicas not in (1, self._plan.num_replicas):
                raise ValueError(
                    f"The topology of TopologyAllReduce must have as many replicas as the strategy, {num_replicas}. "
                    f"Received: one of {self._plan.num_replicas}."
                )
            tensors = tf_seam.tensors_of_replicas(value, destinations)
            if tensors is None or num_replicas == 1:
                reduced.append(super().reduce_implementation(reduce_op, value, destinations, options))
            else:
                reduced.append(self._reduce(reduce_op, tensors, turn=i))
        return reduced

    def _reduce(self, reduce_op: Any, tensors: Sequence[tf.Tensor], turn: int) -> Any:
        tree = self._plan.whole(turn)
        link = Copies({replica: tensor.device for replica, tensor in enumerate(tensors)})
        of_replicas, like = {replica: [tensor] for replica, tensor in enumerate(tensors)}, specs_of(tensors[:1])
        total = summed_up(tree, of_replicas, like, link, name="reduce")
        assert total is not None
        if reduce_op == tf.distribute.ReduceOp.MEAN:
            with tf.device(link.device(tree.replica)):
                total = [one / tf.cast(len(tensors), one.dtype) for one in total]
        received = handed_down(tree, of_replicas, total, like, link, name="reduce")
        return tf_seam.mirrored([received[replica][0] for replica in range(len(tensors))])
