"""Where `tfdp demo` and the examples keep what they write."""

from collections.abc import Mapping
from pathlib import Path


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Returns the folder, which need not exist: TFDP_CACHE, else `tfdp` in XDG_CACHE_HOME, else `~/.cache/tfdp`.

    Args:
        environment: variables by name, such as `os.environ`.

    Example:
        >>> cache_folder({"TFDP_CACHE": "/data/cache"}).as_posix()
        '/data/cache'
    """
    if chosen := environment.get("TFDP_CACHE"):
        return Path(chosen).expanduser().absolute()
    caches = environment.get("XDG_CACHE_HOME", "")
    # The XDG specification has relative paths ignored.
    return (Path(caches) if Path(caches).is_absolute() else Path.home() / ".cache") / "tfdp"
