"""A file is whole or not there, whatever becomes of the one who writes it."""

import pytest

from tfdp.callbacks.whole_files import written_whole


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("name", ["model.keras", "model.h5", "model.weights.h5", "model", "[a]*.keras"])
def test_a_file_takes_its_place_at_the_end_under_a_name_with_the_same_suffix(tmp_path, name):
    path = tmp_path / name
    path.write_text("before")
    with written_whole(path) as unfinished:
        unfinished.write_text("after")
        assert path.read_text() == "before"
        assert unfinished.name.endswith(name.removeprefix("model").removeprefix("[a]*"))
    assert path.read_text() == "after"
    assert names(tmp_path) == [name]


def test_what_was_there_stays_where_writing_fails(tmp_path):
    path = tmp_path / "model.keras"
    path.write_text("before")
    with pytest.raises(OSError, match="full"), written_whole(path) as unfinished:
        unfinished.write_text("half")
        raise OSError("the disk is full")
    assert path.read_text() == "before"
    assert names(tmp_path) == ["model.keras"]


def test_what_a_killed_process_has_left_goes_with_the_next_write(tmp_path):
    (tmp_path / ".model.keras.123.unfinished.keras").write_text("half")
    (tmp_path / ".other.keras.123.unfinished.keras").write_text("half")
    with written_whole(tmp_path / "model.keras") as unfinished:
        unfinished.write_text("whole")
    assert names(tmp_path) == [".other.keras.123.unfinished.keras", "model.keras"]


def test_a_folder_of_that_name_is_an_error(tmp_path):
    (tmp_path / "model.keras").mkdir()
    with pytest.raises(IsADirectoryError), written_whole(tmp_path / "model.keras") as unfinished:
        unfinished.write_text("whole")
    assert names(tmp_path) == ["model.keras"]


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link.keras").symlink_to(tmp_path / "elsewhere" / "model.keras")
    with written_whole(tmp_path / "link.keras") as unfinished:
        unfinished.write_text("whole")
    assert (tmp_path / "link.keras").is_symlink()
    assert (tmp_path / "elsewhere" / "model.keras").read_text() == "whole"
