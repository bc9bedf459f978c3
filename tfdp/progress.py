"""What the steps of a training tell the process that makes them: examples that were seen, and who wishes to stop."""

from typing import Any

import tensorflow as tf

from tfdp import tf_seam


def progress_of(trainer: Any) -> "Progress":
    """Returns the progress of a trainer, made when it is first asked for."""
    if "_tfdp_progress" not in vars(trainer):
        vars(trainer)["_tfdp_progress"] = Progress()
    return vars(trainer)["_tfdp_progress"]


class Progress:
    """Counts the steps of a trainer and their examples, and carries the wish to stop from any worker to all.

    Its variables belong to this process alone and lie in the memory of its CPU, where reading them waits for nothing.
    """

    def __init__(self) -> None:
        with tf.init_scope(), tf.device("CPU:0"):
            self._wish, self._num_wishes = (tf_seam.plain_variable(tf.constant(0)) for _ in range(2))
            self._counts = tf_seam.plain_variable(tf.zeros([2], tf.int64))  # steps, examples

    @property
    def wish(self) -> tf.Tensor:
        """Whether this worker wishes to stop, an int32 scalar; a step sums those of all replicas."""
        return self._wish.read_value()

    def note(self, num_examples: tf.Tensor, num_wishes: tf.Tensor) -> None:
        """Notes what a step has found; for one replica of each process.

        Args:
            num_examples: in the global batch, an int32 scalar.
            num_wishes: the sum of the wishes of all replicas, an int32 scalar.
        """
        self._num_wishes.assign(num_wishes)
        self._counts.assign_add(tf.stack([tf.constant(1, tf.int64), tf.cast(num_examples, tf.int64)]))

    def wish_to_stop(self, wishes: bool) -> None:
        """Lets the next step carry this worker's wish, or none."""
        self._wish.assign(int(wishes))
        if not wishes:
            self._num_wishes.assign(0)

    @property
    def anyone_wishes_to_stop(self) -> bool:
        """Whether any worker wished to stop when the last step was made; the same on all workers."""
        return int(self._num_wishes.numpy()) > 0

    @property
    def num_steps(self) -> int:
        """How many steps were made, since this was made."""
        return int(self._counts.numpy()[0])

    @property
    def num_examples(self) -> int:
        """How many examples all replicas have seen in them; those without a batch axis count as none."""
        return int(self._counts.numpy()[1])
