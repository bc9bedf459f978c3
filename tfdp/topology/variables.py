"""Counts and ranks that launchers leave in the environment."""

import re
from collections.abc import Mapping


def first_set(environment: Mapping[str, str], *names: str) -> str | None:
    """Returns the first of the variables `names` that is set to more than blanks, or None."""
    return next((name for name in names if environment.get(name, "").strip()), None)


def integer(environment: Mapping[str, str], *names: str) -> int | None:
    """Returns the value of the first of the variables `names` that is set, or None where none is.

    Raises:
        ValueError: it is no integer of at least 0.
    """
    name = first_set(environment, *names)
    if name is None:
        return None
    text = environment[name].strip()
    if not re.fullmatch("[0-9]{1,18}", text):
        raise ValueError(
            f"{name} must be an integer of at least 0, as the launcher sets it. Received: {name}={text!r}. "
            "Unset it, or describe the cluster in TF_CONFIG."
        )
    return int(text)
