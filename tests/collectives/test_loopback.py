"""The communicator between threads."""

import threading

import pytest
import tensorflow as tf

from tfdp.collectives import loopback


def test_members_get_what_all_contribute():
    def member(group):
        own = tf.constant([group.rank + 1.0, 2.0])
        return [
            group.sum([own], name="a")[0].numpy().tolist(),
            group.gather(own, name="b").numpy().tolist(),
            group.gather_rows(own[: group.rank + 1], name="c").numpy().tolist(),
            group.exchange(own, name="d").numpy().tolist(),
        ]

    sums_and_rows = [[3.0, 4.0], [1.0, 2.0, 2.0, 2.0], [1.0, 2.0, 2.0]]
    assert loopback(2, member) == [[*sums_and_rows, [1.0, 2.0]], [*sums_and_rows, [2.0, 2.0]]]


def test_one_member_runs_at_a_time():
    running = threading.Lock()

    def member(group):
        for step in range(20):
            assert running.acquire(blocking=False)
            total = sum(range(20000))
            running.release()
            group.sum([tf.constant(total)], name=f"step {step}")

    loopback(3, member)


@pytest.mark.parametrize(
    ("member", "said"),
    [
        (lambda group: group.sum([tf.zeros(2)], name=f"of {group.rank}"), r"member 1 calls sum\('of 1'\)"),
        (lambda group: group.rank or group.sum([tf.zeros(2)], name="x"), "without"),
        (lambda group: group.rank and group.sum([tf.zeros(2)], name="x"), "without"),
        (lambda group: getattr(group, "gather" if group.rank else "exchange")(tf.zeros(2), name="x"), "member 0 calls"),
    ],
    ids=["another name", "one ends early", "one ends before the other comes", "another operation"],
)
def test_members_that_do_not_meet_are_told_at_once(member, said):
    with pytest.raises(ValueError, match=said):
        loopback(2, member)


def test_what_a_member_raises_is_raised():
    def member(group):
        if group.rank == 1:
            raise KeyError("broken")
        group.sum([tf.zeros(2)], name="x")

    with pytest.raises(KeyError, match="broken"):
        loopback(2, member)


def test_a_group_has_members():
    with pytest.raises(ValueError, match="1 member or more, not 0"):
        loopback(0, lambda group: None)
