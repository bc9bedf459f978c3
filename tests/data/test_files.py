"""Files give every example once, in an order that is always the same, and say what is wrong with them."""

import gzip
import itertools
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

import tfdp
from tfdp.data import sharding
from tfdp.data.files import Files, looks_like_files
from tfdp.data.layout import Layout, assigned

UNEQUAL = (5, 0, 7, 1)  # examples of the files


def write_records(path, values):
    options = tf.io.TFRecordOptions("GZIP" if ".gz" in path.name else "")
    with tf.io.TFRecordWriter(str(path), options) as writer:
        for value in values:
            writer.write(str(value).encode())


def write_lines(path, lines):
    text = "".join(f"{line}\n" for line in lines)
    with (gzip.open if ".gz" in path.name else open)(path, "wt") as file:
        file.write(text)


def write_csv(path, values):
    write_lines(path, ["number,half,word", *(f"{value},{value / 2},w{value}" for value in values)])


def write_parquet(path, values):
    columns = {"number": pa.array(values, pa.int64()), "word": pa.array([f"w{value}" for value in values], pa.string())}
    pq.write_table(pa.table(columns), path, row_group_size=3)


def number_of(example):
    return int(example["number"] if isinstance(example, dict) else example)


KINDS = {
    "part-{}.tfrecord": write_records,
    "part.tfrecord-0000{}-of-00004": write_records,
    "part.tfrec.gz-0000{}-of-00004": write_records,
    "part-{}.csv": write_csv,
    "part-{}.csv.gz": write_csv,
    "part-{}.parquet": write_parquet,
    "part-{}.txt": write_lines,
}


@pytest.fixture(params=KINDS)
def names(request, tmp_path):
    """Files of UNEQUAL numbers of examples, which are 0, 1, 2 ... from the first file to the last."""
    ends = list(itertools.accumulate(UNEQUAL, initial=0))
    paths = [tmp_path / request.param.format(index) for index in range(len(UNEQUAL))]
    for path, (begin, end) in zip(paths, itertools.pairwise(ends), strict=True):
        KINDS[request.param](path, range(begin, end))
    return paths


def numbers(dataset):
    return [number_of(example) for example in dataset.as_numpy_iterator()]


def test_all_parts_come_one_after_the_other(names):
    files = Files(names)
    assert numbers(files.examples()) == list(range(13))
    assert files.part_names == [str(name) for name in names]
    assert files.part_sizes == [name.stat().st_size for name in names]


def test_workers_that_share_the_parts_read_every_example_once(names):
    files = Files(names)
    shares = [numbers(files.examples(parts)) for parts in assigned(files.part_sizes, 3)]
    assert sorted(itertools.chain(*shares)) == list(range(13))


def test_parts_are_read_in_turn_in_the_order_given(names):
    files = Files(names)
    assert numbers(files.examples([2, 0])) == [5, 0, 6, 1, 7, 2, 8, 3, 9, 4, 10, 11]
    assert numbers(files.examples([1, 3])) == [12]


def test_no_parts_give_no_examples_but_of_the_same_kind(names):
    files = Files(names)
    assert numbers(files.examples([])) == []
    assert files.examples([]).element_spec == files.examples().element_spec == files.examples([0]).element_spec


def test_many_files_are_interleaved_in_the_same_order_each_time(tmp_path):
    for index in range(20):
        write_records(tmp_path / f"{index:02}.tfrecord", range(100 * index, 100 * index + index % 7))
    files = Files([tmp_path / "*.tfrecord"])
    orders = [numbers(files.examples(range(20))) for _ in range(5)]
    assert all(order == orders[0] for order in orders)
    assert sorted(orders[0]) == numbers(files.examples())


@pytest.mark.parametrize(("suffix", "known"), [("parquet", 2), ("csv", None)])
def test_only_parquet_files_know_the_number_of_their_examples(tmp_path, suffix, known):
    path = tmp_path / f"a.{suffix}"
    KINDS["part-{}." + suffix](path, range(2))
    assert Files([path]).num_examples == known


def test_a_source_names_itself(tmp_path):
    for name in ("a.txt", "b.txt"):
        write_lines(tmp_path / name, [name])
    assert Files([tmp_path / "*.txt"]).name == "2 text files"
    assert Files([tmp_path / "a.txt"]).name == "1 text file"


# Through the door


def shared(dataset, layout, **options):
    strategy = mock.Mock(spec=tf.distribute.Strategy, everyones=lambda topic, value: [value])
    with mock.patch.object(sharding, "layout_of", lambda strategy: layout):
        return tfdp.data.shard(dataset, strategy=strategy, global_batch_size=12, seed=0, **options)


@pytest.mark.parametrize("by", ["files", "examples"])
@pytest.mark.parametrize("num_workers", [1, 2, 3])
def test_shards_of_files_hold_every_example_once(tmp_path, num_workers, by):
    for index, count in enumerate(UNEQUAL):
        write_records(tmp_path / f"{index}.tfrecord", range(10 * index, 10 * index + count))
    seen = []
    for worker in range(num_workers):
        data = shared(
            str(tmp_path / "*.tfrecord"),
            Layout(num_workers, worker, 2),
            shuffle_buffer=4,
            by=by,
            map=lambda record: tf.strings.to_number(record, tf.int64),
        )
        assert data.by == by
        seen += [int(value) for batch in data.local_batches(0).as_numpy_iterator() for value in batch]
    assert sorted(seen) == sorted(itertools.chain(*(range(10 * i, 10 * i + UNEQUAL[i]) for i in range(4))))


def test_batches_of_parquet_files_can_be_counted(tmp_path):
    write_parquet(tmp_path / "a.parquet", range(30))
    assert len(tfdp.data.shard(tmp_path / "a.parquet", global_batch_size=4)) == 8


# Names


def test_what_a_pattern_matches_is_sorted(tmp_path):
    for name in ("b.txt", "a.txt", "c.txt"):
        write_lines(tmp_path / name, [name])
    files = Files([tmp_path / "[bc].txt", tmp_path / "a.txt"])
    assert list(files.examples().as_numpy_iterator()) == [b"b.txt", b"c.txt", b"a.txt"]


def test_a_file_whose_name_is_like_a_pattern_is_read(tmp_path):
    write_lines(tmp_path / "a[1].txt", ["here"])
    assert list(Files([tmp_path / "a[1].txt"]).examples().as_numpy_iterator()) == [b"here"]


def test_names_with_a_scheme_are_read(tmp_path):
    write_parquet(tmp_path / "a.parquet", range(4))
    write_csv(tmp_path / "a.csv", range(4))
    for name in ("a.parquet", "a.csv"):
        assert numbers(Files([f"file://{tmp_path / name}"]).examples()) == [0, 1, 2, 3]


def test_wrong_names_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a.txt", "b.csv", "c.bin"):
        write_lines(tmp_path / name, ["a"])
    (tmp_path / "folder").mkdir()
    for names, message in (
        ([], "`dataset` must name at least one file. Received: an empty list."),
        (["no.txt"], "`dataset` must name files that exist. Received: 'no.txt', which matches none."),
        (["no*.txt"], "`dataset` must name files that exist. Received: 'no*.txt', which matches none."),
        (["a.txt", "*.txt"], f"`dataset` must name each file once. Received: '{tmp_path}/a.txt' more than once."),
        (["a.txt", "./a.txt"], f"`dataset` must name each file once. Received: '{tmp_path}/a.txt' more than once."),
        (
            ["folder"],
            "`dataset` must name files. Received: the folder 'folder'. Give a pattern, such as 'folder/*.tfrecord'.",
        ),
        (
            ["c.bin"],
            "`dataset` must name files of a kind that the ends of their names tell: TFRecord (.tfrecord, .tfrecords, "
            ".tfrec), CSV (.csv), Parquet (.parquet, .pq), text (.txt, .jsonl). Received: 'c.bin'.",
        ),
        (
            ["a.txt", "b.csv"],
            "`dataset` must name files of one kind. Received: text ('a.txt') and CSV ('b.csv').",
        ),
    ):
        with pytest.raises(ValueError) as caught:
            Files(names)
        assert str(caught.value) == message


def test_names_of_files_are_told_from_names_of_data_sets(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path / "words", ["a"])
    (tmp_path / "mnist").mkdir()
    for name in (
        "a.csv",
        "b.tfrecords.gz",
        "c.pq",
        "d.jsonl.gz",
        "data/*",
        "./mnist",
        "/data/mnist",
        "a/b/c",
        "gs://bucket/x",
        "x.tfrecord-*",
        "words",
        "a b",
    ):
        assert looks_like_files(name), name
    for name in ("mnist", "mnist/fewer", "glue/mrpc:1.0.0", "mnist:3.*.*", "kaggle:a/b", "c4/en/x=1", "wmt19/de-en"):
        assert not looks_like_files(name), name


# CSV


def test_types_of_csv_columns_are_told_by_their_cells(tmp_path):
    rows = ["whole,half,hole,word,none", '-1,.5,1,"a, ""b""",', "", "+2,1e3,,7,", "3,nan,2,x,"]
    write_lines(tmp_path / "a.csv", rows)
    examples = list(Files([tmp_path / "a.csv"]).examples().as_numpy_iterator())
    assert [example["whole"] for example in examples] == [-1, 2, 3]
    np.testing.assert_equal([example["half"] for example in examples], np.float32([0.5, 1000, np.nan]))
    np.testing.assert_equal([example["hole"] for example in examples], np.float64([1, np.nan, 2]))
    assert [example["word"] for example in examples] == [b'a, "b"', b"7", b"x"]
    assert [example["none"] for example in examples] == [b"", b"", b""]
    assert {name: value.dtype for name, value in examples[0].items() if name in ("whole", "half", "hole")} == {
        "whole": np.int64,
        "half": np.float32,
        "hole": np.float64,
    }


def test_whole_numbers_of_csv_files_keep_their_values(tmp_path):
    big, huge = 2**63 - 1, 2**63
    rows = ["big,hole,half,wide,huge,gap", f"{big},16777217,0.5,.5,{huge},{2**53 + 1}", "-1,,16777216,16777217,1,"]
    write_lines(tmp_path / "a.csv", rows)
    examples = list(Files([tmp_path / "a.csv"]).examples().as_numpy_iterator())
    assert {name: value.dtype.name for name, value in examples[0].items() if hasattr(value, "dtype")} == {
        "big": "int64",
        "hole": "float64",
        "half": "float32",
        "wide": "float64",
    }
    assert [example["big"] for example in examples] == [big, -1]
    np.testing.assert_equal([example["hole"] for example in examples], [16777217, np.nan])
    assert [example["wide"] for example in examples] == [0.5, 16777217]
    assert [example["huge"] for example in examples] == [str(huge).encode(), b"1"]
    assert [example["gap"] for example in examples] == [str(2**53 + 1).encode(), b""]


def test_csv_files_may_begin_with_a_mark_and_end_lines_in_any_way(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"\xef\xbb\xbfone,two\r\n1,2\r\n3,4")
    examples = list(Files([tmp_path / "a.csv"]).examples().as_numpy_iterator())
    assert examples == [{"one": 1, "two": 2}, {"one": 3, "two": 4}]


def test_many_rows_and_empty_lines_between_them_come_in_order(tmp_path):
    write_lines(tmp_path / "a.csv", ["number", *itertools.chain(*((value, "") for value in range(600)))])
    assert numbers(Files([tmp_path / "a.csv"]).examples()) == list(range(600))


def test_cells_of_another_type_in_a_later_csv_file_fail(tmp_path):
    for name, cell in (("a", "1"), ("b", "1.5")):
        write_lines(tmp_path / f"{name}.csv", ["x", cell])
    with pytest.raises(tf.errors.InvalidArgumentError, match="Field 0 in record 0 is not a valid int64: 1"):
        list(Files([tmp_path / "*.csv"]).examples())


def test_types_come_from_the_first_csv_file_that_has_rows(tmp_path):
    (tmp_path / "a.csv").touch()
    write_csv(tmp_path / "b.csv", [])
    write_csv(tmp_path / "c.csv", [3])
    assert numbers(Files([tmp_path / "*.csv"]).examples()) == [3]
    assert Files([tmp_path / "b.csv"]).examples().element_spec["word"].dtype == tf.string


def test_rows_without_a_cell_for_each_column_fail(tmp_path):
    write_csv(tmp_path / "a.csv", [1])
    write_lines(tmp_path / "b.csv", ["number,half,word", "1,2"])
    with pytest.raises(tf.errors.InvalidArgumentError, match="Expect 3 fields but have 2 in record 0"):
        numbers(Files([tmp_path / "*.csv"]).examples())


def test_wrong_csv_files_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.csv").touch()
    write_lines(tmp_path / "blank.csv", ["", "a,b", "1,2"])
    write_lines(tmp_path / "a.csv", ["a,b", "1,2"])
    write_lines(tmp_path / "swapped.csv", ["b,a", "1,2"])
    write_lines(tmp_path / "twice.csv", ["a,a"])
    write_lines(tmp_path / "short.csv", ["a,b", "1"])
    write_lines(tmp_path / "break.csv", ["a,b", '1,"c', 'd"'])
    (tmp_path / "old.csv").write_bytes(b"a,b\r1,2\r3,4\r")
    write_lines(tmp_path / "wide.csv", ["a,b", "1," + "x" * 140_000])
    for names, message in (
        (["empty.csv"], "CSV files must begin with a row of names of columns. Received: 'empty.csv' without one."),
        (["blank.csv"], "CSV files must begin with a row of names of columns. Received: 'blank.csv' without one."),
        (
            ["a.csv", "swapped.csv"],
            "All CSV files must have the same columns. Received: ['a', 'b'] and, in 'swapped.csv', ['b', 'a'].",
        ),
        (["twice.csv"], "Columns of CSV files must have names of their own. Received: ['a', 'a']."),
        (["short.csv"], "Rows of CSV files must have a cell for each of the 2 columns. Received: ['1']."),
        (
            ["break.csv"],
            "Rows of CSV files must be single lines, with quotes around whole cells. Received: '1,\"c' in 'break.csv'.",
        ),
        (
            ["old.csv"],
            'Rows of CSV files must end with "\\n" or "\\r\\n". Received: \'old.csv\', where they end with "\\r". '
            "Convert it, such as with `tr '\\r' '\\n'`.",
        ),
        (
            ["wide.csv"],
            f"Cells of CSV files must have at most 131,072 characters. Received: '1,{'x' * 98}...' in 'wide.csv'. "
            "Write such data as TFRecord or Parquet files.",
        ),
    ):
        with pytest.raises(ValueError) as caught:
            Files(names)
        assert str(caught.value) == message


# Parquet


def test_parquet_columns_keep_their_types(tmp_path):
    columns = {
        "byte": pa.array([1, 2, 3], pa.uint8()),
        "float": pa.array([0.5, None, 2], pa.float32()),
        "bool": pa.array([True, False, True]),
        "word": pa.array(["a", None, "ü"]),
        "bytes": pa.array([b"\xff", b"", None], pa.large_binary()),
        "label": pa.array(["x", "y", "x"]).dictionary_encode(),
        "vector": pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int32())),
        "fixed": pa.array([[1, None], [3, 4], [5, 6]], pa.list_(pa.float64(), 2)),
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet", row_group_size=2)
    dataset = Files([tmp_path / "a.parquet"]).examples()
    assert {name: (spec.dtype.name, spec.shape.as_list()) for name, spec in dataset.element_spec.items()} == {
        "byte": ("uint8", []),
        "float": ("float32", []),
        "bool": ("bool", []),
        "word": ("string", []),
        "bytes": ("string", []),
        "label": ("string", []),
        "vector": ("int32", [2]),
        "fixed": ("float64", [2]),
    }
    (batch,) = dataset.batch(3).as_numpy_iterator()
    np.testing.assert_equal(batch["byte"], [1, 2, 3])
    np.testing.assert_equal(batch["float"], [0.5, np.nan, 2])
    np.testing.assert_equal(batch["bool"], [True, False, True])
    assert batch["word"].tolist() == [b"a", b"", "ü".encode()]
    assert batch["bytes"].tolist() == [b"\xff", b"", b""]
    assert batch["label"].tolist() == [b"x", b"y", b"x"]
    np.testing.assert_equal(batch["vector"], [[1, 2], [3, 4], [5, 6]])
    np.testing.assert_equal(batch["fixed"], [[1, np.nan], [3, 4], [5, 6]])


def test_lists_have_the_length_of_those_in_the_first_parquet_file_that_has_rows(tmp_path):
    for name, rows in (("a", []), ("b", [[1, 2], [3, 4]])):
        pq.write_table(pa.table({"x": pa.array(rows, pa.list_(pa.float32()))}), tmp_path / f"{name}.parquet")
    dataset = Files([tmp_path / "*.parquet"]).examples()
    assert dataset.element_spec == {"x": tf.TensorSpec([2], tf.float32)}
    assert [example["x"].tolist() for example in dataset.as_numpy_iterator()] == [[1, 2], [3, 4]]
    assert Files([tmp_path / "a.parquet"]).examples().element_spec == {"x": tf.TensorSpec([None], tf.float32)}


def test_row_groups_of_many_rows_come_in_order(tmp_path):
    write_parquet(tmp_path / "a.parquet", range(200))
    pq.write_table(pq.read_table(tmp_path / "a.parquet"), tmp_path / "b.parquet", row_group_size=150)
    assert numbers(Files([tmp_path / "b.parquet"]).examples()) == list(range(200))


def test_wrong_parquet_files_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, column in {
        "a": pa.array([1]),
        "b": pa.array(["1"]),
        "time": pa.array([1], pa.timestamp("ms")),
        "ragged": pa.array([[1], [1, 2]]),
        "nothing": pa.array([[], []], pa.list_(pa.int64())),
        "hole": pa.array([1, None]),
    }.items():
        pq.write_table(pa.table({"x": column}), f"{name}.parquet")
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["x", "x"])
    pq.write_table(twice, "twice.parquet")
    for names, message in (
        (
            ["twice.parquet"],
            "Columns of Parquet files must have names of their own. Received: ['x', 'x'] in 'twice.parquet'.",
        ),
        (
            ["a.parquet", "b.parquet"],
            "All Parquet files must have the same columns. Received: x (int64) in 'a.parquet', and x (string) in "
            "'b.parquet'.",
        ),
        (
            ["time.parquet"],
            "Columns of Parquet files must hold numbers, booleans, strings, or lists of numbers of one length. "
            "Received: column 'x' of 'time.parquet', of type timestamp[ms].",
        ),
        (
            ["ragged.parquet"],
            "Lists of a column of Parquet files must have one length, of at least 1. Received: 1 and 2 values in "
            "column 'x' of 'ragged.parquet'.",
        ),
        (
            ["nothing.parquet"],
            "Lists of a column of Parquet files must have one length, of at least 1. Received: 0 values in column 'x' "
            "of 'nothing.parquet'.",
        ),
        (
            ["hole.parquet"],
            "Only floats and strings of Parquet files may be missing. Received: column 'x' of 'hole.parquet', of type "
            "int64, with 1 missing of 2.",
        ),
    ):
        with pytest.raises(ValueError) as caught:
            Files(names)
        assert str(caught.value) == message


def test_lists_of_another_length_in_a_later_file_fail(tmp_path):
    for name, vector in (("a", [1, 2]), ("b", [1, 2, 3])):
        pq.write_table(pa.table({"x": pa.array([vector])}), tmp_path / f"{name}.parquet")
    with pytest.raises(tf.errors.OpError, match="2 and 3 values in column 'x' of"):
        list(Files([tmp_path / "*.parquet"]).examples())


def test_a_missing_pyarrow_is_named(tmp_path):
    write_parquet(tmp_path / "a.parquet", [1])
    with (
        mock.patch.dict("sys.modules", {"pyarrow": None, "tfdp.data.parquet_format": None}),
        pytest.raises(ImportError) as caught,
    ):
        Files([tmp_path / "a.parquet"])
    assert str(caught.value) == (
        "Parquet files are read with pyarrow, which is not installed. Install it with: pip install pyarrow"
    )
