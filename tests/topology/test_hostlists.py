"""Lists of hosts as Slurm and users write them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdp.topology.hostlists import compress, expand, hosts_with_counts

fixed_examples = settings(derandomize=True, database=None, deadline=None)

LISTS = {
    "node[01-03,07]": "node01 node02 node03 node07",
    "b04-[09-10]": "b04-09 b04-10",
    "n[9-11]": "n9 n10 n11",
    "n[098-101]": "n098 n099 n100 n101",
    "alpha,beta": "alpha beta",
    "node7": "node7",
    "007": "007",
    "c1009a-s17,c1010a-s11": "c1009a-s17 c1010a-s11",
    "c1001a-s[11,17]": "c1001a-s11 c1001a-s17",
    "gpu-dy-g4dnxlarge-[1-4]": " ".join(f"gpu-dy-g4dnxlarge-{i}" for i in range(1, 5)),
    "nodeA,nodeB[001,003],nodeC": "nodeA nodeB001 nodeB003 nodeC",
    "c-b24-[1-3,5-9],c-b25-[1,4,8]": " ".join(f"c-b24-{i}" for i in (1, 2, 3, 5, 6, 7, 8, 9))
    + " c-b25-1 c-b25-4 c-b25-8",
    "rack[0-1]_blade[0-1]": "rack0_blade0 rack0_blade1 rack1_blade0 rack1_blade1",
    "linux[1,2]": "linux1 linux2",
    "n[1-2].cluster.local": "n1.cluster.local n2.cluster.local",
    "[1-2]": "1 2",
    "a, b ,  n[1, 3-4]\n": "a b n1 n3 n4",
    "n[08-11]": "n08 n09 n10 n11",
    "n[5]": "n5",
}
WRONG = [
    "",
    "  ",
    ",",
    "a,",
    "a,,b",
    "node[1-",
    "node[1-2",
    "node1]",
    "node]1[",
    "node[3-1]",
    "node[]",
    "node[1,]",
    "node[a-b]",
    "node[1-2-3]",
    "node[-1]",
    "node[[1]]",
    "node[1-2],b[",
    "a b",
    "node[0-99999999999999]",
    "n[0-99999]m[0-99999]",
    "n[٣]",
    "n[" + "9" * 5000 + "]",
]


@pytest.mark.parametrize(("text", "names"), LISTS.items())
def test_a_list_is_written_out(text, names):
    assert expand(text) == names.split()


@pytest.mark.parametrize("text", WRONG)
def test_what_is_no_list_is_refused_by_name(text):
    with pytest.raises(ValueError, match="A list of hosts looks like") as raised:
        expand(text)
    assert f"Received: {text!r}." in str(raised.value)


@fixed_examples
@given(st.text(alphabet="ab1[]-, :", max_size=12))
def test_every_text_is_a_list_or_refused(text):
    for read in (expand, lambda text: hosts_with_counts(text, name="TFDP_HOSTS")):
        try:
            assert read(text)
        except ValueError as error:
            assert repr(text) in str(error)


NAMES = st.text(alphabet="ab-_.019", min_size=1, max_size=8)
NUMBERED = st.builds("{}{}{}".format, st.sampled_from(["n", "b04-"]), st.integers(0, 120), st.sampled_from(["", "-x"]))


@fixed_examples
@given(st.lists(st.one_of(NAMES, NUMBERED), min_size=1, max_size=30))
def test_any_names_come_back_from_their_short_form_in_their_order(names):
    assert expand(compress(names)) == names


@fixed_examples
@given(
    st.sampled_from(["n", "rack1-"]), st.integers(0, 2000), st.integers(1, 60), st.integers(1, 6), st.sampled_from("x ")
)
def test_neighbours_become_one_range(prefix, first, num_names, width, suffix):
    names = [f"{prefix}{number:0{width}}{suffix.strip()}" for number in range(first, first + num_names)]
    text = compress(names)
    assert expand(text) == names
    assert text.count(",") == 0


def test_short_forms_read_as_slurm_writes_them():
    assert compress(["node01", "node02", "node03", "node07"]) == "node[01-03,07]"
    assert compress(["b04-09", "b04-10"]) == "b04-[09-10]"
    assert compress(["alpha", "alpha", "beta2", "beta"]) == "alpha,alpha,beta2,beta"
    assert compress([]) == ""


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("a:4,b:4", [("a", 4), ("b", 4)]),
        ("a", [("a", 1)]),
        ("n[01-02]:2, login", [("n01", 2), ("n02", 2), ("login", 1)]),
        ("[fe80::1]:3,10.0.0.2:1", [("[fe80::1]", 3), ("10.0.0.2", 1)]),
        ("[::1]", [("[::1]", 1)]),
    ],
)
def test_hosts_have_numbers_of_workers(text, hosts):
    assert hosts_with_counts(text, name="TFDP_HOSTS") == hosts


@pytest.mark.parametrize("text", ["a:0", ":3", "::1", "fe80::1", "a:b", "a:4:4"])
def test_a_host_without_a_right_number_is_named(text):
    with pytest.raises(ValueError, match=r"TFDP_HOSTS must list hosts .* 'a:4,b:4'") as raised:
        hosts_with_counts(f"ok:1,{text}", name="TFDP_HOSTS")
    assert str(raised.value).endswith(f"Received: TFDP_HOSTS='ok:1,{text}' (not so {text!r}).")


def test_numbers_that_would_fill_the_memory_are_refused():
    with pytest.raises(ValueError, match=r"131072 hosts or workers at most"):
        hosts_with_counts("a:1,b:9999999999", name="TFDP_HOSTS")


def test_a_host_that_stands_twice_is_named():
    with pytest.raises(ValueError, match=r"each host once\. Received: 'n1' twice in --hosts='n\[1-2\],n1'"):
        hosts_with_counts("n[1-2],n1", name="--hosts")
