"""Data sets of TensorFlow Datasets give every example once, by shards and by pieces, and say what is wrong."""

import itertools
import json
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

import tfdp
from tfdp.cli import demo_data
from tfdp.data import sharding
from tfdp.data.catalog import Catalog, Range, cut
from tfdp.data.layout import Layout, assigned

NUM_TRAIN, NUM_TEST = 23, 5


class Numbers(tfds.core.GeneratorBasedBuilder):
    """Numbers, in splits of several shards."""

    VERSION = tfds.core.Version("1.0.0")
    SUPERVISED_KEYS = ("number", "is_odd")

    def _info(self):
        features = tfds.features.FeaturesDict({"number": np.int64, "is_odd": np.int64})
        return tfds.core.DatasetInfo(builder=self, features=features, supervised_keys=self.SUPERVISED_KEYS)

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples(0, NUM_TRAIN), "test": self._generate_examples(100, NUM_TEST)}

    def _generate_examples(self, first, count):
        for number in range(first, first + count):
            yield number, {"number": number, "is_odd": number % 2}


class Unsupervised(Numbers):
    """Numbers without a label."""

    VERSION = tfds.core.Version("1.0.0")
    SUPERVISED_KEYS = None


def prepared(builder, num_shards=4):
    builder.download_and_prepare(download_config=tfds.download.DownloadConfig(num_shards=num_shards))
    return builder


@pytest.fixture(scope="module")
def builder(tmp_path_factory):
    return prepared(Numbers(data_dir=tmp_path_factory.mktemp("numbers")))


def numbers(dataset):
    return [int(number) for number, _ in dataset.as_numpy_iterator()]


def test_all_examples_come_in_the_order_of_the_shards(builder):
    catalog = Catalog(builder, "train")
    order = numbers(catalog.examples())
    assert sorted(order) == list(range(NUM_TRAIN))
    assert order == numbers(catalog.examples())
    assert order == list(itertools.chain(*(numbers(catalog.examples([part])) for part in range(4))))


def test_parts_are_the_shards(builder):
    catalog = Catalog(builder, "train")
    assert catalog.num_examples == NUM_TRAIN
    assert catalog.part_sizes == [len(numbers(catalog.examples([part]))) for part in range(4)]
    assert catalog.part_names == [f"numbers-train.tfrecord-0000{part}-of-00004" for part in range(4)]
    assert catalog.name == "split train of numbers/1.0.0"


@pytest.mark.parametrize("num_workers", [1, 2, 3])
def test_workers_that_share_the_shards_read_every_example_once(builder, num_workers):
    catalog = Catalog(builder, "train")
    shares = [numbers(catalog.examples(parts)) for parts in assigned(catalog.part_sizes, num_workers)]
    assert sorted(itertools.chain(*shares)) == list(range(NUM_TRAIN))


def test_shards_are_read_in_turn_in_the_order_given(builder):
    catalog = Catalog(builder, "train")
    third, first = numbers(catalog.examples([2])), numbers(catalog.examples([0]))
    order = numbers(catalog.examples([2, 0]))
    assert order[:4] == [third[0], first[0], third[1], first[1]]
    assert sorted(order) == sorted(third + first)
    assert all(numbers(catalog.examples([2, 0])) == order for _ in range(3))


@pytest.mark.parametrize("split", ["train", "train[3:-2]", "train[:50%]+test[1:]", "test[:3]", "train[2:2]", "all"])
def test_pieces_are_everything_and_differ_by_one_example_at_most(builder, split, num_pieces=4):
    catalog = Catalog(builder, split)
    pieces = [catalog.split(num_pieces, piece) for piece in range(num_pieces)]
    read = [numbers(piece.examples()) for piece in pieces]
    assert [len(piece) for piece in read] == [piece.num_examples for piece in pieces]
    assert max(map(len, read)) - min(map(len, read)) <= 1
    assert list(itertools.chain(*read)) == numbers(catalog.examples())
    assert len(numbers(catalog.examples())) == catalog.num_examples


def test_pieces_of_a_piece_are_the_piece(builder):
    piece = Catalog(builder, "train").split(2, 1)
    inner = [numbers(piece.split(3, index).examples()) for index in range(3)]
    assert list(itertools.chain(*inner)) == numbers(piece.examples())


def test_a_part_of_a_split_has_no_shards_of_its_own(builder):
    for split in ("train[:50%]", "train+test", tfds.core.ReadInstruction("train", to=3, unit="abs")):
        assert Catalog(builder, split).part_sizes == ()


def test_nothing_has_the_kind_of_everything(builder):
    catalog = Catalog(builder, "train")
    assert numbers(catalog.examples([])) == []
    assert catalog.examples([]).element_spec == catalog.examples().element_spec == catalog.examples([1]).element_spec


def test_empty_shards_are_read(tmp_path):
    folder = Path(prepared(Numbers(data_dir=tmp_path), num_shards=2).data_dir)
    (folder / "numbers-test.tfrecord-00001-of-00002").rename(folder / "numbers-test.tfrecord-00002-of-00003")
    (folder / "numbers-test.tfrecord-00000-of-00002").rename(folder / "numbers-test.tfrecord-00000-of-00003")
    (folder / "numbers-test.tfrecord-00001-of-00003").touch()
    info = json.loads((folder / "dataset_info.json").read_text())
    (split,) = (split for split in info["splits"] if split["name"] == "test")
    split["shardLengths"].insert(1, "0")
    (folder / "dataset_info.json").write_text(json.dumps(info))
    catalog = Catalog(tfds.builder_from_directory(folder), "test")
    assert len(catalog.part_sizes) == 3 and catalog.part_sizes[1] == 0
    assert sorted(numbers(catalog.examples([0, 1, 2]))) == list(range(100, 100 + NUM_TEST))
    assert numbers(catalog.examples([1])) == []


def test_examples_without_a_label_are_dicts(tmp_path):
    catalog = Catalog(prepared(Unsupervised(data_dir=tmp_path)), "test")
    assert set(catalog.examples().element_spec) == {"number", "is_odd"}


def test_a_range_is_cut_across_splits():
    ranges = [Range("a", 10, 15), Range("b", 0, 3)]
    assert cut(ranges, 0, 8) == ranges
    assert cut(ranges, 4, 6) == [Range("a", 14, 15), Range("b", 0, 1)]
    assert cut(ranges, 5, 5) == []


@pytest.mark.parametrize("by", ["files", "examples"])
@pytest.mark.parametrize("num_workers", [1, 2, 3])
def test_shards_of_a_data_set_hold_every_example_once(builder, num_workers, by):
    strategy = mock.Mock(spec=tf.distribute.Strategy, everyones=lambda topic, value: [value])
    seen = []
    for worker in range(num_workers):
        with mock.patch.object(sharding, "layout_of", lambda strategy, worker=worker: Layout(num_workers, worker, 2)):
            data = tfdp.data.shard(
                builder, split="train", strategy=strategy, global_batch_size=12, shuffle_buffer=4, seed=0, by=by
            )
        assert data.by == by
        seen += [int(number) for batch, _ in data.local_batches(0).as_numpy_iterator() for number in batch]
    assert sorted(seen) == list(range(NUM_TRAIN))


def test_digits_are_read_by_their_builder(tmp_path):
    catalog = Catalog(demo_data.digits(tmp_path), "test")
    image, label = next(catalog.examples().as_numpy_iterator())
    assert (catalog.num_examples, image.shape, label.dtype) == (357, (8, 8, 1), np.int64)


# What is not there


def test_data_that_are_not_there_are_prepared_once(tmp_path):
    with mock.patch.object(
        Numbers, "_generate_examples", autospec=True, side_effect=Numbers._generate_examples
    ) as made:
        for _ in range(2):
            assert Catalog(Numbers(data_dir=tmp_path), "test").num_examples == NUM_TEST
    assert made.call_count == 2  # once for each split


def test_data_that_another_process_prepares_meanwhile_are_read(tmp_path):
    late = Numbers(data_dir=tmp_path)
    with mock.patch.object(late, "_split_generators", side_effect=late._split_generators) as generate:
        generate.side_effect = lambda *args: (
            prepared(Numbers(data_dir=tmp_path)),
            Numbers._split_generators(late, *args),
        )[1]
        catalog = Catalog(late, "train")
    assert sorted(numbers(catalog.examples())) == list(range(NUM_TRAIN))
    assert len(catalog.part_sizes) == 4


def test_a_data_set_is_found_by_its_name(builder):
    with mock.patch.object(tfds, "builder", lambda name: {"numbers": builder}[name]):
        assert Catalog("numbers", "train").num_examples == NUM_TRAIN


def test_wrong_splits_are_refused(builder):
    for split in (None, "valid", "train[", "train[:90]", ["train"]):
        with pytest.raises(ValueError) as caught:
            Catalog(builder, split)
        assert str(caught.value) == (
            "`split` must be a split of numbers/1.0.0 ('test', 'train') or a part of one, such as "
            f"'train[:10%]'. Received: split={split!r}."
        )


def test_an_unknown_name_is_refused():
    with (
        mock.patch.object(tfds, "builder", side_effect=tfds.core.DatasetNotFoundError("no")),
        pytest.raises(ValueError) as caught,
    ):
        Catalog("nmist", "train")
    assert str(caught.value) == (
        "`dataset` must name files that exist, or a data set of TensorFlow Datasets. Received: 'nmist', which is "
        "neither."
    )


def test_a_missing_package_is_named():
    with mock.patch.dict("sys.modules", {"tensorflow_datasets": None}), pytest.raises(ImportError) as caught:
        Catalog("mnist", "train")
    assert str(caught.value) == (
        "'mnist' is no file, and data sets by name are read with tensorflow-datasets, which is not installed. Install "
        "it with: pip install tensorflow-datasets"
    )
