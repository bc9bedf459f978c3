"""Each replica's file is whole or not there; what is no longer needed goes, whoever works beside."""

import concurrent.futures

import numpy as np
import pytest

from tfdp.callbacks.part_files import PartFiles
from tfdp.compression_state import Part, Slot


def part(rank, num_members=2, value=0.0):
    return Part(rank, num_members, "int8()", {Slot(0, 0, "kernel"): [np.full([4], rank + value, "float32")]})


def names(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def numbers(parts):
    return [(one.rank, one.num_members, float(one.states[Slot(0, 0, "kernel")][0][0])) for one in parts]


def test_a_worker_reads_its_own_parts(tmp_path):
    for rank in range(2):
        PartFiles(tmp_path, [rank], 2).write(7, [part(rank)])
    assert names(tmp_path) == ["7/part-0-of-2.npz", "7/part-1-of-2.npz"]
    assert numbers(PartFiles(tmp_path, [1], 2).read(7)) == [(1, 2, 1.0)]
    assert numbers(PartFiles(tmp_path, [0, 1], 2).read(7)) == [(0, 2, 0.0), (1, 2, 1.0)]


def test_a_worker_of_a_group_of_another_size_reads_all_parts(tmp_path):
    PartFiles(tmp_path, [0, 1], 2).write(7, [part(0), part(1)])
    for num_members in (1, 3, 4):
        assert numbers(PartFiles(tmp_path, [0], num_members).read(7)) == [(0, 2, 0.0), (1, 2, 1.0)]


def reason(files, iteration=7):
    with pytest.raises(LookupError) as raised:
        files.read(iteration)
    return raised.value.args[0]


def test_missing_parts_are_named(tmp_path):
    assert reason(PartFiles(tmp_path, [0], 2)) == f"there is none in {tmp_path / '7'}"
    PartFiles(tmp_path, [1], 3).write(7, [part(1, 3)])
    expected = f"in {tmp_path / '7'} there are no parts of replicas"
    assert reason(PartFiles(tmp_path, [0], 2)) == f"{expected} [0, 2] of 3"
    assert reason(PartFiles(tmp_path, [1, 2], 3)) == f"{expected} [2] of 3"
    assert reason(PartFiles(tmp_path, [1], 3), 8) == f"there is none in {tmp_path / '8'}"


@pytest.mark.parametrize("content", [b"", b"broken"])
def test_a_broken_part_is_named(tmp_path, content):
    files = PartFiles(tmp_path, [0], 2)
    files.write(7, [part(0)])
    (tmp_path / "7/part-0-of-2.npz").write_bytes(content)
    assert reason(files).startswith(f"{tmp_path / '7/part-0-of-2.npz'} cannot be read: These bytes are no saved")


def test_a_part_that_was_not_written_to_its_end_is_none(tmp_path, monkeypatch):
    files = PartFiles(tmp_path, [0], 2)
    files.write(7, [part(0)])
    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", lambda descriptor: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            files.write(7, [part(0, value=1.0)])
    assert names(tmp_path) == ["7/part-0-of-2.npz", "7/part-0-of-2.npz.unfinished"]
    assert numbers(files.read(7)) == [(0, 2, 0.0)]
    files.keep(set())
    assert not tmp_path.exists()


def test_workers_remove_their_own_parts_and_the_last_one_the_folder(tmp_path):
    workers = [PartFiles(tmp_path, [rank], 2) for rank in range(2)]
    for iteration in (3, 10, 20):
        for rank, worker in enumerate(workers):
            worker.write(iteration, [part(rank)])
    workers[0].keep({10, 20})
    assert names(tmp_path / "3") == ["part-1-of-2.npz"]
    workers[1].keep({10, 20})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["10", "20"]
    workers[0].keep(set())
    assert names(tmp_path) == ["10/part-1-of-2.npz", "20/part-1-of-2.npz"]
    workers[1].keep(set())
    assert not tmp_path.exists()


def test_files_of_others_stay(tmp_path):
    (tmp_path / "3").mkdir()
    for name in ("notes.txt", "3/weights.h5", "4"):
        (tmp_path / name).write_text("mine")
    files = PartFiles(tmp_path, [0, 1], 2)
    files.write(3, [part(0), part(1)])
    files.keep(set())
    assert names(tmp_path) == ["3/weights.h5", "4", "notes.txt"]


@pytest.mark.parametrize("num_members", [1, 2, 4])
def test_parts_of_a_group_of_another_size_each_go_with_one_worker(tmp_path, num_members):
    PartFiles(tmp_path, [0, 1, 2], 3).write(7, [part(rank, 3) for rank in range(3)])
    for rank in range(num_members):
        PartFiles(tmp_path, [rank], num_members).write(7, [part(rank, num_members)])
    assert names(tmp_path) == [f"7/part-{rank}-of-{num_members}.npz" for rank in range(num_members)]


def test_workers_that_write_and_remove_at_once_do_not_disturb_each_other(tmp_path):
    folder = tmp_path / "shared" / "state"

    def work(rank):
        files = PartFiles(folder, [rank], 4)
        for iteration in range(60):
            files.write(iteration, [part(rank, 4)])
            assert numbers(files.read(iteration)) == [(rank, 4, rank)]
            files.keep({iteration} if iteration % 3 else set())

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(4))) == [None] * 4
    assert {name.partition("/")[0] for name in names(folder)} == {"59"}


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError):
        PartFiles(tmp_path / "file", [0], 2).write(7, [part(0)])


def test_all_parts_are_read_where_those_of_a_worker_do_not_fit_it_and_all_are_there(tmp_path):
    for rank in (0, 1):
        PartFiles(tmp_path, [rank], 2).write(7, [part(rank)])
    files = PartFiles(tmp_path, [1], 2)
    assert numbers(files.read(7, lambda parts: False)) == [(0, 2, 0.0), (1, 2, 1.0)]
    assert numbers(files.read(7, lambda parts: True)) == [(1, 2, 1.0)]
