"""Ports that all workers compute alike."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdp.topology.cluster import check_address
from tfdp.topology.ports import addresses, number_of_name, port_base

fixed_examples = settings(derandomize=True, database=None, deadline=None)


@fixed_examples
@given(st.lists(st.sampled_from(["a", "b", "[::1]"]), min_size=1, max_size=64), st.integers(0, 10**10))
def test_every_worker_has_an_address_of_its_own_below_the_ports_of_outgoing_connections(hosts, job):
    found = addresses(hosts, port_base({}, job=job))
    assert len(set(found)) == len(hosts)
    for host, address in zip(hosts, found, strict=True):
        check_address(address, "a test")
        assert address.startswith(f"{host}:")
        assert 10000 <= int(address.rpartition(":")[2]) < 32768


@fixed_examples
@given(st.integers(0, 10**7), st.integers(0, 350))
def test_jobs_and_steps_that_follow_each_other_have_ports_far_apart(job, step):
    bases = {port_base({}, job=job + i, step=step + j) for i in range(5) for j in range(5)}
    assert len(bases) == 25
    assert all(abs(one - other) >= 64 for one in bases for other in bases if one != other)


def test_the_formula_is_the_documented_one():
    assert port_base({}, job=0) == 10000
    assert port_base({}, job=123456, step=2) == 10000 + 64 * ((123456 + 37 * 2) % 352)


def test_a_chosen_port_counts():
    assert port_base({"TFDP_PORT_BASE": " 4000 "}, job=7) == 4000


@pytest.mark.parametrize("text", ["0", "65536", "http", "-1", "1.5", "٣"])
def test_a_chosen_port_that_is_none_is_named(text):
    with pytest.raises(ValueError, match="TFDP_PORT_BASE must be a port, from 1 to 65535") as raised:
        port_base({"TFDP_PORT_BASE": text}, job=7)
    assert f"Received: TFDP_PORT_BASE={text!r}" in str(raised.value)


def test_ports_that_would_end_too_high_are_refused():
    assert addresses(["a", "a"], base=65534) == ["a:65534", "a:65535"]
    with pytest.raises(ValueError, match=r"Received: 65536, as the 3 workers of a host begin at 65534"):
        addresses(["a", "b", "a", "a"], base=65534)


def test_names_of_jobs_give_the_same_number_in_every_process():
    assert number_of_name("123456") == 0x0972D361  # its CRC-32
    assert number_of_name("") == 0
