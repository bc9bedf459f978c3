"""What an example is known by: its content, which travels beside it through a pipeline.

What is compared is the example as its source gives it. What `map` makes of it may be random, and what a batch makes of
it may depend on its neighbours (padded_batch).
"""

import functools
import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfdp.data.pipeline import weighted

_DIGEST_BYTES = 16
# Where AutoGraph converts a function, it adds a stack to the message of what that raises, and takes its time.
_plainly = tf.autograph.experimental.do_not_convert

Label = int | str


class Content(NamedTuple):
    """One example.

    Attributes:
        digest: of its tensors' bytes, dtypes and shapes.
        num_bytes: of its tensors.
        label: None where examples have none.
        is_padding: whether it fills up a batch, with weight zero.
    """

    digest: bytes
    num_bytes: int
    label: Label | None
    is_padding: bool


def content_transforms(
    transforms: Sequence[Callable[..., Any]], *, label: Any, has_weights: bool
) -> tuple[Callable[..., Any], ...]:
    """Returns maps, one after the other, from an example to what `contents` reads.

    Args:
        transforms: what training does to each example.
        label: a function of the example after `transforms`, or an index or key into it; None takes the second of a
            pair (x, y) where it is an integer.
        has_weights: whether training adds a weight to each example, which not every example allows.
    """
    begin: list[Callable[..., Any]] = [_with_content]
    begin += [functools.partial(_beside_content, transform) for transform in transforms]
    if has_weights:
        begin.append(_with_weight_tried)
    if label is None:
        return (*begin, _with_label_of_pair)
    if callable(label):
        return (*begin, functools.partial(_with_result, label), _with_checked_label)
    return (*begin, _plainly(functools.partial(_with_entry, label)), _with_checked_label)


def contents(batches: tf.data.Dataset) -> Iterator[list[Content]]:
    """Returns the examples of each batch of what went through `content_transforms`."""
    for (pieces, num_bytes), labels, *weights in batches.as_numpy_iterator():
        is_padding = weights[0] == 0 if weights else np.zeros(len(pieces), bool)
        names = [_as_label(row[0]) for row in labels] if labels.shape[1] else [None] * len(pieces)
        yield [
            Content(_digest(row), int(size), name, bool(padding))
            for row, size, name, padding in zip(pieces, num_bytes, names, is_padding, strict=True)
        ]


@_plainly
def _with_content(*element: Any) -> Any:
    element = element[0] if len(element) == 1 else element
    tensors = tf.nest.flatten(element, expand_composites=True)
    pieces = tf.stack([tf.io.serialize_tensor(tensor) for tensor in tensors])  # with dtypes and shapes
    return element, (pieces, tf.add_n([_num_bytes(tensor) for tensor in tensors]))


def _beside_content(transform: Callable[..., Any], element: Any, content: Any) -> Any:
    return _called(transform, element), content


@_plainly
def _with_weight_tried(element: Any, content: Any) -> Any:
    weighted(element, tf.ones([]))  # raises where training would
    return element, content


@_plainly
def _with_label_of_pair(element: Any, content: Any) -> Any:
    is_pair = isinstance(element, tuple) and len(element) == 2 and isinstance(element[1], tf.Tensor)
    has_label = is_pair and element[1].dtype.is_integer and element[1].shape.rank == 0
    return content, element[1][tf.newaxis] if has_label else tf.zeros([0], tf.int64)


def _with_result(label: Callable[..., Any], element: Any, content: Any) -> Any:
    return content, _called(label, element)


def _with_entry(label: Any, element: Any, content: Any) -> Any:
    try:
        return content, element[label]
    except (KeyError, IndexError, TypeError, ValueError):
        known = f"a dict with the keys {', '.join(map(repr, element))}" if isinstance(element, dict) else repr(element)
        raise ValueError(
            "`label` must be a function of an example, or an index or key into it. Received: "
            f"label={label!r} for {known}."
        ) from None


@_plainly
def _with_checked_label(content: Any, label: Any) -> Any:
    label = tf.convert_to_tensor(label)
    if label.shape.rank != 0 or not (label.dtype.is_integer or label.dtype in (tf.bool, tf.string)):
        raise ValueError(
            f"`label` must give a scalar that is an integer, a string or a bool. Received: {label.dtype.name} of shape "
            f"{label.shape}."
        )
    return content, label[tf.newaxis]


def _called(function: Callable[..., Any], element: Any) -> Any:
    return function(*element) if type(element) is tuple else function(element)  # as tf.data does


def _num_bytes(tensor: tf.Tensor) -> tf.Tensor:
    if tensor.dtype == tf.string:
        return tf.reduce_sum(tf.cast(tf.strings.length(tensor), tf.int64))
    return tf.size(tensor, tf.int64) * tensor.dtype.size


def _as_label(value: Any) -> Label:
    return value.decode(errors="replace") if isinstance(value, bytes) else int(value)


def _digest(pieces: Sequence[bytes]) -> bytes:
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for piece in pieces:
        digest.update(len(piece).to_bytes(8, "little"))  # or ("ab", "c") would be ("a", "bc")
        digest.update(piece)
    return digest.digest()
