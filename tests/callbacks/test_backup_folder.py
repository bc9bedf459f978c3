"""Backups are whole or not there, at whatever call of the system a process dies."""

import functools
import os
import sys
from pathlib import Path

import pytest

from tfdp.callbacks.backup_folder import BackupFolder
from tfdp.callbacks.whole_files import written_whole

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def save(folder, number):
    """Writes and commits a backup, of which the weights are as many bytes as its number says, and keeps no other."""
    backups = BackupFolder(folder)
    backups.write(number, lambda path: Path(path).write_bytes(bytes(number)), {"epoch": number})
    backups.commit(number)
    backups.keep([number])


def write(path, text):
    with written_whole(path) as unfinished:
        unfinished.write_text(text)


def is_of_system(function):
    owner = getattr(function, "__self__", None)
    module = function.__module__ or type(owner).__module__
    return module in ("posix", "_io") and not function.__name__.startswith("_")


def status_when_killed_at(call, function):
    """Returns how a child process ended that runs `function` and dies before one of its calls of the system."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    left = call

    def die(frame, event, argument):
        nonlocal left
        if event == "c_call" and is_of_system(argument):
            left -= 1
            if left < 0:
                os._exit(9)

    try:
        sys.setprofile(die)
        function()
        os._exit(0)
    finally:
        os._exit(1)


def test_a_process_that_dies_leaves_the_backup_before_or_the_new_one(tmp_path):
    status, found = 9, []
    while status == 9:
        save(tmp_path, 1)
        status = status_when_killed_at(len(found), functools.partial(save, tmp_path, 2))
        best = BackupFolder(tmp_path).backups()[0]
        assert best.weights.read_bytes() == bytes(best.number)
        assert best.training["epoch"] == best.number
        found.append(best.number)
        BackupFolder(tmp_path).keep([])
        assert not tmp_path.exists()
    assert status == 0
    assert found == sorted(found)
    assert set(found) == {1, 2}


def test_a_process_that_dies_leaves_the_file_before_or_the_new_one(tmp_path):
    path, status, found = tmp_path / "model.keras", 9, []
    while status == 9:
        path.write_text("before")
        status = status_when_killed_at(len(found), functools.partial(write, path, "after"))
        found.append(path.read_text())
    assert status == 0
    assert found == sorted(found, reverse=True)
    assert set(found) == {"before", "after"}
    assert [one.name for one in tmp_path.iterdir()] == ["model.keras"]
