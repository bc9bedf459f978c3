"""Arrays are taken as they are, or refused with what to do."""

import numpy as np
import pytest

import tfdp
from tfdp.data.array_reading import as_arrays


@pytest.mark.parametrize(
    ("array", "error", "message"),
    [
        (
            np.ma.array([1, 2], mask=[0, 1]),
            ValueError,
            "`dataset` must hold no masked values, which a tensor would show.",
        ),
        (np.array(["2020-01-01"], "datetime64[D]"), TypeError, "Received: an array of datetime64[D]. Convert times to"),
        (np.array(["a", None], object), TypeError, "an array of objects, such as None of type NoneType. Fill what is"),
    ],
)
def test_what_a_tensor_would_change_is_refused(array, error, message):
    with pytest.raises(error) as raised:
        tfdp.data.shard({"x": array}, global_batch_size=2)
    assert message in str(raised.value)


def test_masks_that_hide_nothing_and_objects_that_are_strings_are_taken():
    assert as_arrays(np.ma.array([1, 2])).tolist() == [1, 2]
    assert as_arrays(np.array(["a", b"b"], object)).tolist() == ["a", b"b"]


def test_frames_are_arrays_where_their_columns_have_a_type_in_common():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": [1, 2], "b": [0.5, 1.5]})
    assert as_arrays(frame).tolist() == [[1, 0.5], [2, 1.5]]
    assert as_arrays(dict(frame))["a"].dtype == np.int64
    assert as_arrays(pandas.Series(["x", "y"])).tolist() == ["x", "y"]
    assert as_arrays(pandas.Series([True, False], dtype="boolean")).tolist() == [True, False]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda pandas: pandas.DataFrame({"a": [1], "b": ["x"]}), "column 'b' of"),
        (
            lambda pandas: pandas.DataFrame({"a": [1.0], "t": pandas.to_datetime(["2020-01-01"])}),
            "column 't' of datetime",
        ),
        (lambda pandas: pandas.Series(["x", None], name="word"), "the Series 'word' of objects, such as "),
        (lambda pandas: pandas.Series([True, None], dtype="boolean", name="flag"), "the Series 'flag' of objects"),
        (
            lambda pandas: pandas.Series(pandas.to_datetime(["2020-01-01"]), name="t"),
            "the Series 't' of datetime64[",
        ),
    ],
)
def test_frames_that_are_no_arrays_are_refused_by_column(make, message):
    pandas = pytest.importorskip("pandas")
    with pytest.raises(TypeError) as raised:
        as_arrays(make(pandas))
    assert message in str(raised.value)
