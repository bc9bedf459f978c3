"""Callbacks of which one worker alone writes."""

import contextlib
from collections.abc import Iterator
from typing import Any

from tfdp import tf_seam
from tfdp.callbacks.together import failing_together, num_workers_of, worker_of


class OneWriter:
    """What callbacks share of which all workers have one, and one worker writes: the chief.

    State has its defaults in the class: a callback of Keras may become one of these.

    Attributes:
        tfdp_writer: the rank of the worker that writes.
        tfdp_is_everywhere: whether all workers have this callback, so that they can wait for each other.
    """

    model: Any
    tfdp_writer = 0
    tfdp_is_everywhere = True

    def _strategy(self) -> Any:
        return getattr(self.model, "distribute_strategy", None)

    def _writes(self) -> bool:
        return num_workers_of(self._strategy()) == 1 or worker_of(self._strategy()) == self.tfdp_writer

    def _meets_others(self) -> bool:
        """Returns whether other workers come to the same points as this one."""
        return self.tfdp_is_everywhere and num_workers_of(self._strategy()) > 1

    def _failing_together(self) -> Any:
        """Returns a context whose errors all workers raise, where they have this callback too."""
        name = type(self).__name__
        return failing_together(self._strategy(), name) if self._meets_others() else contextlib.nullcontext()


@contextlib.contextmanager
def swapped(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Gives an attribute another value for a while."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def reading_alone(strategy: Any) -> Any:
    """Returns a context in which one worker can read all variables without the others.

    Variables that are summed over the replicas when they are read (metrics) give this worker's part.
    """
    return tf_seam.reading_own_parts() if num_workers_of(strategy) > 1 else contextlib.nullcontext()
