"""The handwritten digits that come with scikit-learn, as a data set of tensorflow-datasets."""

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from tfdp.cli.demo_cache import cache_folder

NAME, VERSION = "digits", "1.0.0"
NUM_TRAINING_EXAMPLES = 1440  # of 1797; divides by batches of 48 and of 96
_SEED = 0


def digits(cache: Path | None = None) -> tfds.core.DatasetBuilder:
    """Returns the builder of the splits "train" (1440 examples) and "test" (357), from which `as_dataset` reads.

    The first call writes the data set, without a network. Calls at the same time do not disturb each other, and one
    that is killed leaves nothing that a later one reads.

    Args:
        cache: the folder to keep it in; None takes `cache_folder`.
    """
    folder = (cache or cache_folder(os.environ)) / NAME / VERSION
    if not folder.is_dir():
        _write(folder)
    return tfds.builder_from_directory(folder)


def _write(folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".being-written-") as beside:
        data = Path(beside) / VERSION
        data.mkdir()
        _write_files(data)
        try:
            data.rename(folder)  # at once, complete or not at all
        except OSError:
            if not folder.is_dir():  # else another process was faster, and its data are the same
                raise


def _write_files(folder: Path) -> None:
    info = tfds.core.DatasetInfo(
        builder=tfds.core.DatasetIdentity(
            name=NAME, version=tfds.core.Version(VERSION), data_dir=str(folder), module_name=__name__
        ),
        description="Handwritten digits: the test set of UCI's Optical Recognition of Handwritten Digits.",
        features=tfds.features.FeaturesDict(
            {
                "image": tfds.features.Tensor(shape=(8, 8, 1), dtype=np.uint8),  # 0 to 16
                "label": tfds.features.ClassLabel(num_classes=10),
            }
        ),
        supervised_keys=("image", "label"),
    )
    writer = tfds.core.SequentialWriter(info, max_examples_per_shard=10_000)
    splits = _splits()
    writer.initialize_splits(list(splits))
    writer.add_examples(splits)
    writer.close_all()


def _splits() -> dict[str, list[dict[str, Any]]]:
    from sklearn.datasets import load_digits  # needed once only

    pixels, labels = load_digits(return_X_y=True)  # float64 [1797, 64], int64 [1797]
    images = pixels.reshape(-1, 8, 8, 1).astype(np.uint8)
    order = np.random.default_rng(_SEED).permutation(len(images))
    examples = [{"image": images[index], "label": int(labels[index])} for index in order]
    return {"train": examples[:NUM_TRAINING_EXAMPLES], "test": examples[NUM_TRAINING_EXAMPLES:]}
