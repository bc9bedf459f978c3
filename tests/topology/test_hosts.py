"""Which names and addresses are one host."""

import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdp.topology.hosts import addresses_of, host_of, same_hosts

fixed_examples = settings(derandomize=True, database=None, deadline=None)


def known(**addresses):
    """Returns a resolver that knows these names, each with its addresses in one text."""

    def resolve(name):
        if name not in addresses:
            raise OSError(f"{name} is not known")
        return addresses[name].split()

    return resolve


def never(name):
    raise AssertionError(f"{name} was looked up")


@pytest.mark.parametrize(
    ("address", "host"),
    [("a:1", "a"), ("[::1]:2222", "::1"), ("[fe80::1%eth0]:80", "fe80::1%eth0"), ("w-0.w.ns.svc:1", "w-0.w.ns.svc")],
)
def test_the_host_of_an_address_has_no_port_and_no_brackets(address, host):
    assert host_of(address) == host


def test_all_ways_to_write_this_machine_are_one_host():
    hosts = ["127.0.0.1", "localhost", "::1", "LOCALHOST", "0:0:0:0:0:0:0:1", "::ffff:127.0.0.1", "localhost."]
    assert same_hosts(hosts, never) == ["127.0.0.1"] * len(hosts)


def test_other_loopback_addresses_stand_for_hosts_of_their_own():
    hosts = ["127.0.0.2", "127.0.0.3", "127.0.0.2", "127.0.0.1"]
    assert same_hosts(hosts, never) == hosts


def test_names_with_an_address_in_common_are_one_host():
    resolve = known(a="10.0.0.1 10.1.0.1", b="10.0.0.2", c="10.1.0.1 fe80::7")
    assert same_hosts(["a", "b", "c", "10.0.0.2", "fe80:0::7"], resolve) == ["a", "b", "a", "b", "a"]


def test_a_name_may_show_that_two_hosts_are_one():
    assert same_hosts(["10.0.0.1", "x", "10.1.0.1", "a"], known(a="10.0.0.1 10.1.0.1", x="10.0.0.9")) == [
        "10.0.0.1",
        "x",
        "10.0.0.1",
        "10.0.0.1",
    ]


def test_a_name_of_this_machine_with_a_loopback_address_is_this_machine():
    # as Debian writes it into /etc/hosts
    assert same_hosts(["a", "localhost", "b"], known(a="127.0.1.1", b="10.0.0.2")) == ["a", "a", "b"]


def test_names_that_are_not_known_count_as_themselves():
    assert same_hosts(["a", "b", "A", "a."], known()) == ["a", "b", "a", "a"]


def test_one_name_alone_is_not_looked_up():
    assert same_hosts(["a", "A"], never) == ["a", "a"]


def test_without_a_resolver_names_are_compared_as_written():
    assert same_hosts(["a", "b", "10.0.0.1"], None) == ["a", "b", "10.0.0.1"]


def test_names_that_no_resolver_can_take_count_as_themselves():
    def resolve(name):
        return name.encode("ascii") and {"10.0.0.1"}

    assert same_hosts(["ä", "b"], resolve) == ["ä", "b"]


def test_a_resolver_that_does_not_answer_is_left_behind():
    answered = threading.Event()
    begin = time.monotonic()

    def resolve(name):
        if name == "slow":
            answered.wait(30)
        return {"10.0.0.1"}

    try:
        assert same_hosts(["slow", "a", "b"], resolve, deadline_seconds=0.2) == ["slow", "a", "a"]
        assert time.monotonic() - begin < 10
    finally:
        answered.set()


def test_the_resolver_of_the_system_knows_this_machine():
    assert addresses_of("localhost") & {"127.0.0.1", "::1"}


MACHINES = {f"m{i}": f"10.0.0.{i}" for i in range(4)}


@fixed_examples
@given(st.lists(st.sampled_from([*MACHINES, *MACHINES.values(), "M1", "nobody"]), min_size=1, max_size=12))
def test_hosts_are_grouped_by_machine_and_called_by_the_first_of_the_group(hosts):
    machine = {host: MACHINES.get(host.lower(), host) for host in hosts}
    assert same_hosts(hosts, known(**MACHINES)) == [
        next(other for other in hosts if machine[other] == machine[host]) for host in hosts
    ]
