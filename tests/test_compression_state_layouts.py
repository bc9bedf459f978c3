"""Which saved state goes to which gradient, and what happens where a worker lacks its own."""

import logging

import numpy as np
import pytest
import tensorflow as tf

from tfdp.compression import error_feedback, int8
from tfdp.compression_state import CompressionState, Members, Slot, deserialized, serialized

COMPRESSOR = error_feedback(int8())
SPEC = tf.TensorSpec([2, 3], tf.float32)


def remembering(slots, ranks=(0,), num_members=2, exchange=lambda topic, value: [value]):
    """Returns a state whose residuals are filled with 1 + the position of the slot in `slots`, + 10 times the rank."""
    state = CompressionState(ranks, num_members, COMPRESSOR, exchange)
    state.expect(slots)
    for number, slot in enumerate(slots):
        for local_id, rank in enumerate(ranks):
            variables = state.variables(slot, local_id, COMPRESSOR, SPEC, "")
            variables["residual"].assign(tf.fill(SPEC.shape, 1.0 + number + 10 * rank))
    return state


def restored(saved_parts, slots, **options):
    """Returns what the residuals are after a restore, by slot, for the first replica of the process."""
    state = remembering(slots, **options)
    state.restore(saved_parts)
    return [float(state.variables(slot, 0, COMPRESSOR, SPEC, "")["residual"][0, 0]) for slot in slots]


def slots(*paths, optimizer=0, first=0):
    return [Slot(optimizer, first + i, path) for i, path in enumerate(paths)]


def test_variables_are_found_by_their_paths_where_some_are_frozen_now():
    parts = remembering(slots("a", "b", "c")).parts()
    assert restored(parts, slots("b", "c")) == [2.0, 3.0]


def test_variables_are_found_by_position_where_keras_has_numbered_layers_on():
    parts = remembering(slots("dense", "dense_1", "dense_2")).parts()
    assert restored(parts, slots("dense_1", "dense_2", "dense_3")) == [1.0, 2.0, 3.0]


def test_an_optimizer_is_found_by_its_order_whatever_went_before_it():
    parts = remembering(slots("a", "b", optimizer=3)).parts()
    assert restored(parts, slots("a", "b", optimizer=0)) == [1.0, 2.0]


def test_two_optimizers_keep_their_own():
    both = [*slots("a", "b", optimizer=1), *slots("a", "b", optimizer=4)]
    assert restored(remembering(both).parts(), [*slots("a", "b", optimizer=0), *slots("a", "b", optimizer=1)]) == [
        1.0,
        2.0,
        3.0,
        4.0,
    ]


def test_another_number_of_replicas_shares_out_what_was_not_sent():
    parts = remembering(slots("a"), ranks=(0, 1), num_members=2).parts()  # 1 and 11
    assert restored(parts, slots("a"), ranks=(0, 1, 2), num_members=3) == [4.0]


@pytest.mark.parametrize("num_members", [2, 3])
def test_without_a_part_that_it_needs_a_worker_starts_anew_and_says_so(caplog, num_members):
    parts = remembering(slots("a"), ranks=(1,), num_members=2).parts()
    with caplog.at_level(logging.WARNING, logger="tfdp"):
        assert restored(parts, slots("a"), ranks=(0,), num_members=num_members) == [0.0]
    assert "those of replicas [1] of 2. Compression starts anew on all workers." in caplog.text


def test_all_workers_start_anew_where_one_lacks_its_part(caplog):
    parts = remembering(slots("a")).parts()
    with caplog.at_level(logging.WARNING, logger="tfdp"):
        assert restored(parts, slots("a"), exchange=lambda topic, value: [value, False]) == [0.0]
    assert "Compression starts anew on all workers." in caplog.text


def test_what_is_restored_before_the_variables_are_made_is_kept_for_them():
    content = remembering(slots("a", "b")).serialize()
    state = CompressionState([0], 2, COMPRESSOR)
    state.deserialize(content)
    state.expect(slots("a", "b"))
    values = [state.variables(slot, 0, COMPRESSOR, SPEC, "")["residual"].numpy() for slot in slots("a", "b")]
    np.testing.assert_array_equal(np.ravel(values), [1.0] * 6 + [2.0] * 6)
    assert [part.rank for part in deserialized(content)] == [0]


def test_what_is_dropped_is_not_saved():
    state = remembering(slots("a", "b"))
    state.drop(slots("a")[0])
    assert [slot.path for slot in state.parts()[0].states] == ["b"]


# Replicas that share a host keep parts of its state.

HOSTS_OF = {"2 x 2": (0, 0, 1, 1), "3 + 1": (0, 0, 0, 1), "alone": (0, 1, 2, 3)}


def of_hosts(kept_by, hosts, layout="dealt"):
    """Returns the parts of all replicas: residuals are 1 + the position of the slot in `slots`, + 10 times the host.

    Args:
        kept_by: by replica, the paths of what it keeps.
        hosts: by replica, the position of its host.
        layout: as it is saved.
    """
    parts = []
    for rank, host in enumerate(hosts):
        state = CompressionState([rank], 4, COMPRESSOR, members=Members([host], max(hosts) + 1, layout))
        for slot in slots("a", "b", "c"):
            if slot.path in kept_by[rank]:
                variables = state.variables(slot, 0, COMPRESSOR, SPEC, "")
                variables["residual"].assign(tf.fill(SPEC.shape, 1.0 + slot.position + 10 * host))
        parts += state.parts()
    return deserialized(serialized(parts))


def restored_by(rank, kept, hosts, parts, layout="dealt"):
    """Returns by path the residuals of what a replica keeps, after it has restored parts."""
    state = CompressionState([rank], 4, COMPRESSOR, members=Members([hosts[rank]], max(hosts) + 1, layout))
    wanted = [slot for slot in slots("a", "b", "c") if slot.path in kept]
    state.expect(wanted)
    state.restore(parts)
    return {slot.path: float(state.variables(slot, 0, COMPRESSOR, SPEC, "")["residual"][0, 0]) for slot in wanted}


@pytest.mark.parametrize(("rank", "kept", "expected"), [(0, "ac", {"a": 1, "c": 3}), (3, "b", {"b": 12})])
def test_a_replica_of_a_host_needs_its_own_part_alone(rank, kept, expected):
    parts = of_hosts(["ac", "b", "ac", "b"], HOSTS_OF["2 x 2"])
    assert restored_by(rank, kept, HOSTS_OF["2 x 2"], [parts[rank]]) == expected


def test_replicas_that_carry_other_gradients_than_before_take_them_from_the_parts_of_their_host(caplog):
    parts = of_hosts(["ac", "b", "ac", "b"], HOSTS_OF["2 x 2"])
    assert restored_by(2, "bc", HOSTS_OF["2 x 2"], parts, layout="dealt anew") == {"b": 12, "c": 13}
    with caplog.at_level(logging.WARNING, logger="tfdp"):
        assert restored_by(2, "bc", HOSTS_OF["2 x 2"], [parts[2]], layout="dealt anew") == {"b": 0, "c": 0}
    assert "Compression starts anew on all workers." in caplog.text


def test_hosts_share_out_what_replicas_alone_had_not_sent_and_the_other_way_round():
    parts = of_hosts(["abc"] * 4, HOSTS_OF["alone"], layout="")  # 1, 11, 21 and 31: 64 together
    assert restored_by(1, "a", HOSTS_OF["3 + 1"], parts) == {"a": 32}
    parts = of_hosts(["ac", "b", "", "abc"], HOSTS_OF["3 + 1"])  # 1 and 11
    assert restored_by(2, "a", HOSTS_OF["alone"], parts, layout="") == {"a": 3}


def test_parts_that_were_saved_before_there_were_hosts_are_read():
    (part,) = remembering(slots("a")).parts()
    assert (part.member, part.num_hosts, part.layout) == (None, None, "")
    assert (part.owner, part.num_owners) == (0, 2)
