"""What a worker runs: the command that TARGET of `tfdp run` stands for."""

import importlib.util
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import PathFinder
from pathlib import Path

from tfdp.cli.errors import LaunchError


def worker_command(target: str, arguments: Sequence[str] = (), *, module: bool = False) -> list[str]:
    """Returns the command of a worker.

    Args:
        target: a Python file (its name ends in ".py"), a module, or any program by its path or its name on PATH.
        arguments: what the program is given, untouched.
        module: `target` is a module, as for `python -m`.

    Raises:
        LaunchError: there is no such file or module. Programs are checked by `check_program`.

    Example:
        >>> worker_command("python", ["-c", "print(1)"])
        ['python', '-c', 'print(1)']
    """
    if module:
        _check_module(target)
        return [sys.executable, "-u", "-m", target, *arguments]
    if target.endswith(".py"):
        if not Path(target).is_file():
            raise LaunchError(
                f"The Python file to run must exist. Received: {target!r}. Check the path, which is relative to the "
                "current folder."
            )
        return [sys.executable, "-u", target, *arguments]
    return [target, *arguments]


def check_program(program: str, environment: Mapping[str, str]) -> None:
    """Raises a LaunchError unless `program` is a program, by its path or its name on the PATH of `environment`."""
    if shutil.which(program, path=environment.get("PATH", os.defpath)):
        return
    if Path(program).is_file() and os.sep in program:
        remedy = f"Make it executable (`chmod +x {program}`), or run it by its interpreter."
    elif Path(program).is_file():
        remedy = f"For the one in this folder write ./{program}; the name of a Python file must end in '.py'."
    else:
        remedy = "Check its name. A Python file's name must end in '.py', and a module needs `-m` before it."
    raise LaunchError(
        f"The program to run must be on PATH or be the path of a program. Received: {program!r}. {remedy}"
    )


def _check_module(name: str) -> None:
    top = name.partition(".")[0]
    # `python -m` looks in the current folder first. Only the top is looked for: finding `a.b` would import `a`.
    try:
        found = PathFinder.find_spec(top, [""]) or importlib.util.find_spec(top)
    except (ImportError, ValueError):
        found = None
    if found is None:
        remedy = "Leave out `-m` to run a file." if name.endswith(".py") else "Install it, or check its name."
        raise LaunchError(f"The module to run must be one that Python finds. Received: {name!r}. {remedy}")
