"""Iterators of tf.data that end at once, for tests, which make and drop thousands.

The thread in which TensorFlow tunes a pipeline is woken to end before it can see that it shall, and then sleeps on for
the pause between two of its rounds, which grows to a minute. Whoever drops the iterator waits for it: mostly Python's
garbage collector, in the middle of another test.
"""

import tensorflow as tf
from tensorflow.python.data.ops import dataset_ops

_UNTUNED = tf.data.Options()
_UNTUNED.autotune.enabled = False


def use():
    """Lets no iterator of this process tune its pipeline; to be called before any is made."""
    # The one place that all iterators pass.
    dataset_ops.DatasetV2._apply_debug_options = lambda dataset: dataset.with_options(_UNTUNED)
