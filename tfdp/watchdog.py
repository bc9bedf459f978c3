"""A deadline for calls of TensorFlow that wait for other workers.

TensorFlow has a time limit of its own for each collective. It keeps two threads waiting for each, until the time is up
even if the collective has long ended: a training of ten steps a second would need a hundred thousand of them.
"""

import atexit
import logging
import sys
import threading
import time
import weakref
from typing import Any

from tfdp import tf_seam

_LOG = logging.getLogger("tfdp")
_MOST_SECONDS_BETWEEN_LOOKS = 10.0
_SECONDS_TO_END = 5.0


def watch(owner: Any, seconds: float, message: str) -> None:
    """Ends the collectives of this process, with `message`, when one call of TensorFlow lasts longer than `seconds`.

    The call then raises an error. Calls of the thread that this is called in are watched, as long as `owner` lives.

    Args:
        owner: for whom to watch.
        seconds: what a call may take. A look is taken four times in that, and every ten seconds at least.
        message: what to say.
    """
    process_ends = threading.Event()
    arguments = (weakref.ref(owner), threading.get_ident(), seconds, message, process_ends)
    watchdog = threading.Thread(target=_watch, args=arguments, name="tfdp watchdog", daemon=True)
    watchdog.start()
    atexit.register(_end, watchdog, process_ends)


def _end(watchdog: threading.Thread, process_ends: threading.Event) -> None:
    """Ends a thread before Python ends: where it then frees the tensors of a frame, TensorFlow aborts the process."""
    process_ends.set()
    watchdog.join(_SECONDS_TO_END)


def _watch(owner: Any, thread: int, seconds: float, message: str, process_ends: threading.Event) -> None:
    # The frame is kept from look to look: a later call could have one in the same place of memory otherwise.
    watched, since = None, 0.0
    while owner() is not None and not process_ends.wait(min(seconds / 4, _MOST_SECONDS_BETWEEN_LOOKS)):
        frame = sys._current_frames().get(thread)
        if frame is None or not tf_seam.is_call_of_runtime(frame):
            watched = None
        elif frame is not watched:
            watched, since = frame, time.monotonic()
        elif time.monotonic() - since > seconds:
            _LOG.error("%s", message)
            tf_seam.abort_collectives(message)
            return
        del frame
