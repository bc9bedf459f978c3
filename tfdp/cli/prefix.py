"""Lines that say which worker they come from, so that the output of several can share a screen."""

import re

# A progress bar redraws itself many times a second; on a shared screen each drawing is a line.
PROGRESS_SECONDS = 1.0
MAX_LINE_BYTES = 1 << 16
COLOURS = (36, 33, 32, 35, 34, 31)  # cyan first: it reads well on dark and on light

# The "\r" of a progress bar ends a line too. Whether one at the very end does depends on what follows it.
_LINE_END = re.compile(rb"\r*\n|\r(?=[^\r\n])")
# Whatever moves the cursor would write over other workers' lines; colours ("\x1b[..m") may stay.
_CURSOR_MOVES = re.compile(rb"\x1b\[[0-9;?]*[A-Za-ln-z]|[\b\r]")


class LinePrefixer:
    """Cuts the bytes of one worker into whole lines with its rank in front.

    Args:
        rank: of the worker.
        colour: whether the rank is coloured.
    """

    def __init__(self, rank: int, *, colour: bool):
        label = f"[{rank}]"
        self._prefix = (
            f"\x1b[{COLOURS[rank % len(COLOURS)]}m{label}\x1b[0m ".encode() if colour else f"{label} ".encode()
        )
        self._pending = b""
        self._progress_shown_at = -PROGRESS_SECONDS

    def feed(self, data: bytes, now: float) -> bytes:
        """Returns the lines that `data` completes.

        Args:
            data: the next bytes of the worker.
            now: in seconds; of a progress bar, one drawing each second is shown.
        """
        text, lines, start = self._pending + data, [], 0
        for end in _LINE_END.finditer(text):
            line, start = text[start : end.start()], end.end()
            if end.group().endswith(b"\n"):
                lines.append(self._line(line))
            elif line.strip(b"\b\r ") and now - self._progress_shown_at >= PROGRESS_SECONDS:
                self._progress_shown_at = now
                lines.append(self._line(line))
        self._pending = text[start:]
        if len(self._pending) > MAX_LINE_BYTES:
            lines.append(self.finish())
        return b"".join(lines)

    def finish(self) -> bytes:
        """Returns what the worker printed since its last line, as a line."""
        rest, self._pending = self._pending, b""
        return self._line(rest) if rest.strip(b"\b\r ") else b""

    def _line(self, text: bytes) -> bytes:
        return self._prefix + _CURSOR_MOVES.sub(b"", text) + b"\n"
