"""Laws of the plan: which gradients travel together."""

import itertools

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tfdp.buckets import DEFAULT_BUCKET_BYTES, deal, plan_buckets

gradients = st.lists(st.tuples(st.integers(0, 5000), st.sampled_from(["float32", "float16", "complex64"])), max_size=40)
bucket_bytes = st.integers(1, 8000)


def for_all_gradients(function):
    function = example([], 1)(example([(0, "float32"), (0, "float32")], 1)(function))
    return settings(derandomize=True, database=None, deadline=None)(given(gradients, bucket_bytes)(function))


def plan(gradients, bucket_bytes):
    return plan_buckets([size for size, _ in gradients], [kind for _, kind in gradients], bucket_bytes)


@for_all_gradients
def test_every_gradient_travels_exactly_once(gradients, bucket_bytes):
    buckets = plan(gradients, bucket_bytes)
    assert sorted(index for bucket in buckets for index in bucket) == list(range(len(gradients)))
    assert all(buckets)


@for_all_gradients
def test_a_bucket_holds_gradients_of_one_kind(gradients, bucket_bytes):
    for bucket in plan(gradients, bucket_bytes):
        assert len({gradients[index][1] for index in bucket}) == 1


@for_all_gradients
def test_a_bucket_is_larger_than_its_bound_only_for_a_single_gradient(gradients, bucket_bytes):
    for bucket in plan(gradients, bucket_bytes):
        sizes = [gradients[index][0] for index in bucket]
        assert sum(sizes) <= bucket_bytes or len(bucket) == 1


@for_all_gradients
def test_a_bucket_closes_only_when_the_next_gradient_does_not_fit(gradients, bucket_bytes):
    buckets = plan(gradients, bucket_bytes)
    for kind in {kind for _, kind in gradients}:
        of_kind = [bucket for bucket in buckets if gradients[bucket[0]][1] == kind]
        for closed, after in itertools.pairwise(of_kind):
            assert sum(gradients[index][0] for index in [*closed, after[0]]) > bucket_bytes


@for_all_gradients
def test_the_last_gradients_leave_first(gradients, bucket_bytes):
    buckets = plan(gradients, bucket_bytes)
    firsts = [bucket[0] for bucket in buckets]
    assert firsts == sorted(firsts, reverse=True)
    for kind in {kind for _, kind in gradients}:
        order = [index for bucket in buckets for index in bucket if gradients[index][1] == kind]
        assert order == sorted(order, reverse=True)


@for_all_gradients
def test_the_plan_follows_from_its_arguments_alone(gradients, bucket_bytes):
    assert plan(gradients, bucket_bytes) == plan(list(gradients), bucket_bytes)


@pytest.mark.parametrize(
    ("sizes", "kinds", "bucket_bytes", "expected"),
    [
        ([4, 4, 4], "fff", 8, [[2, 1], [0]]),
        ([4, 4, 4], "fff", 12, [[2, 1, 0]]),
        ([4, 4, 4], "fff", 1, [[2], [1], [0]]),
        ([4, 100, 4], "fff", 8, [[2], [1], [0]]),
        ([4, 2, 4, 2], "fhfh", 100, [[3, 1], [2, 0]]),
        ([], "", 8, []),
    ],
)
def test_plans_of_small_models(sizes, kinds, bucket_bytes, expected):
    assert plan_buckets(sizes, kinds, bucket_bytes) == expected


def test_the_default_bucket_is_a_megabyte():
    assert DEFAULT_BUCKET_BYTES == 1 << 20


@settings(derandomize=True, database=None, deadline=None)
@given(st.lists(st.integers(0, 5000), max_size=40), st.integers(1, 8))
def test_turns_have_about_as_many_bytes(sizes, num_turns):
    turns = deal(sizes, num_turns)
    filled = [sum(size for size, turn in zip(sizes, turns, strict=True) if turn == one) for one in range(num_turns)]
    assert len(turns) == len(sizes)
    assert max(filled) - min(filled) <= max(sizes, default=0)


def test_one_turn_has_all():
    assert deal([3, 4, 5], 1) == [0, 0, 0]
