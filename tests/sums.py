"""Sums over replicas that stand in hosts and racks, by Keras's own door: an optimizer that applies gradients."""

import keras
import numpy as np
import tensorflow as tf

# In buckets of 4096 bytes the first three travel one by one, and not always with the same carrier.
LENGTHS = (225, 875, 750, 0, 1, 5, 1023, 1025)
STEPS = 3
PAIRS = '{"hosts": [{"name": "a", "workers": [0, 1]}, {"name": "b", "workers": [2, 3]}]}'
CROSSED = '{"hosts": [{"name": "a", "workers": [0, 3]}, {"name": "b", "workers": [1, 2]}]}'
THREE_AND_ONE = '{"hosts": [{"name": "a", "workers": [0, 1, 2]}, {"name": "b", "workers": [3]}]}'
ALONE = '{"hosts": [{"name": "a", "workers": [0]}, {"name": "b", "workers": [1]}, {"name": "c", "workers": [2]}, \
{"name": "d", "workers": [3]}]}'
TOGETHER = '{"hosts": [{"name": "a", "workers": [0, 1, 2, 3]}]}'
IN_RACKS = '{"racks": [{"name": "r", "hosts": [{"name": "a", "workers": [0]}, {"name": "b", "workers": [1]}]}, \
{"name": "s", "hosts": [{"name": "c", "workers": [2]}, {"name": "d", "workers": [3]}]}]}'
RACKS_OF_PAIRS = (
    '{"racks": [{"name": "r", "hosts": [{"name": "a", "workers": [0, 1]}, {"name": "b", "workers": [2, 3]}]}, \
{"name": "s", "hosts": [{"name": "c", "workers": [4, 5]}, {"name": "d", "workers": [6, 7]}]}]}'
)


def gradients(num_replicas, length, step=0):
    """Returns the gradients of every replica: [num_replicas, length]."""
    return np.random.default_rng([num_replicas, length, step]).standard_normal([num_replicas, length]).astype("float32")


def sums(strategy, optimizer, tables=None):
    """Returns what every local replica has after steps from 0, joined: {length: [replicas, length]}.

    Args:
        strategy: that adds up.
        optimizer: SGD with a learning rate of 1.
        tables: (step, length) -> gradients by replica; None takes `gradients`.
    """
    num_replicas = strategy.num_replicas_in_sync
    tables = tables or (lambda step, length: gradients(num_replicas, length, step))
    with strategy.scope():
        variables = [keras.Variable(np.zeros([length], "float32"), name=f"v{length}") for length in LENGTHS]
        optimizer.build(variables)

    @tf.function
    def train(tables):
        def step():
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            optimizer.apply([table[replica] for table in tables], variables)

        strategy.run(step)

    for step in range(STEPS):
        train([tf.constant(tables(step, length)) for length in LENGTHS])
    return {
        str(length): np.stack([copy.numpy() for copy in strategy.experimental_local_results(variable.value)])
        for length, variable in zip(LENGTHS, variables, strict=True)
    }


def assert_sums(received, num_replicas, tolerance=1e-6):
    """Fails unless each replica has the same, and that is the sum of all replicas' gradients, within rounding.

    Args:
        received: what `sums` returned, of all workers one below the other.
        num_replicas: of all workers.
        tolerance: of the sum of magnitudes.
    """
    for length in LENGTHS:
        ours = received[str(length)]
        assert len(ours) == num_replicas
        for one in ours:
            np.testing.assert_array_equal(one, ours[0])
        all_gradients = np.stack([gradients(num_replicas, length, step) for step in range(STEPS)]).astype("float64")
        error = np.abs(ours[0] + all_gradients.sum((0, 1)))
        assert (error <= tolerance * np.abs(all_gradients).sum((0, 1))).all(), length


def sums_of_hosts(groups, num_replicas):
    """Returns gradients for a replica in place of each host: (step, length) -> [hosts, length].

    Args:
        groups: the replicas of each host.
        num_replicas: of all hosts.
    """

    def tables(step, length):
        table = gradients(num_replicas, length, step)
        return np.stack([np.sum(table[list(group)], axis=0, dtype="float32") for group in groups])

    return tables
