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
    """Ends a thread before Python ends: one that frees a tensor then aborts the process."""
    process_ends.set()
    watchdog.join(_SECONDS_TO_END)


def _watch(owner: Any, thread: int, seconds: float, message: str, process_ends: threading.Event) -> None:
    while owner() is not None and not process_ends.wait(min(seconds / 4, _MOST_SECONDS_BETWEEN_LOOKS)):
        frame = sys._current_frames().get(thread)
        if frame is not None and tf_seam.is_call_of_runtime(frame):
            if frame.f_trace is None:
                frame.f_trace = _Mark()
            elif isinstance(frame.f_trace, _Mark) and time.monotonic() - frame.f_trace.since > seconds:
                _LOG.error("%s", message)
                tf_seam.abort_collectives(message)
                return
        del frame


class _Mark:
    """Tells a call from later ones: left at its frame, as a trace function that does nothing.

    To keep the frame instead would keep all that its callers hold, and free it in the watchdog's thread.

    Attributes:
        since: when the call was seen first, on the monotonic clock.
    """

    def __init__(self) -> None:
        self.since = time.monotonic()

    def __call__(self, frame: Any, event: str, argument: Any) -> None:
        """Is called if somebody debugs the program."""
