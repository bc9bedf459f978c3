"""Lists of host names in the short form that Slurm prints, such as "node[01-03,07]"."""

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence

# A mistyped number must not fill the memory. Slurm itself takes 64 thousand nodes.
MAX_HOSTS = 1 << 17


def expand(text: str) -> list[str]:
    """Returns the names that `text` stands for, in its order.

    Zeros in front of the first number of a range set the width of all. Several brackets in one name give every
    combination, the last one changing fastest. White space around names is ignored.

    Example:
        >>> expand("node[01-03,07], rack[0-1]-b[8-9]")
        ['node01', 'node02', 'node03', 'node07', 'rack0-b8', 'rack0-b9', 'rack1-b8', 'rack1-b9']

    Raises:
        ValueError: `text` is empty or no such list.
    """
    names: list[str] = []
    for item in split(text):
        # Odd parts stood in brackets.
        parts = re.split(r"\[([^\[\]]*)\]", item)
        choices = [_numbers(part, text) if i % 2 else [part] for i, part in enumerate(parts)]
        if any(character in part for part in parts[::2] for character in "[]"):
            raise _error("every bracket must be closed once, and hold no other", text)
        if any(re.search(r"\s", part) for part in parts[::2]):
            raise _error("names must hold no white space", text)
        num_names = 1
        for choice in choices:
            num_names *= len(choice)
        _check_number(len(names) + num_names, text)
        names += ["".join(chosen) for chosen in itertools.product(*choices)]
    return names


def compress(names: Iterable[str]) -> str:
    """Returns a short text that `expand` turns into `names` again; their order stays.

    Example:
        >>> compress(["node08", "node09", "node10", "login"])
        'node[08-10],login'
    """
    items: list[str] = []
    for (before, after, is_numbered), group in itertools.groupby(map(_around_number, names), _without_number):
        numbers = [number for _, number, _ in group]
        if not is_numbered:
            items += [before] * len(numbers)
        elif len(numbers) == 1:
            items.append(f"{before}{numbers[0]}{after}")
        else:
            items.append(f"{before}[{','.join(_ranges(numbers))}]{after}")
    return ",".join(items)


def split(text: str) -> list[str]:
    """Returns the items of a list, split at commas outside of brackets.

    Raises:
        ValueError: there is none, or one is empty.
    """
    items = [item.strip() for item in re.split(r",(?![^\[\]]*\])", text)]
    if not all(items):
        raise _error("it must hold names, with one comma between two", text)
    return items


def hosts_with_counts(text: str, *, name: str) -> list[tuple[str, int]]:
    """Returns the hosts of a list such as "a:4,b:4", each with its number of workers; 1 where none is given.

    Example:
        >>> hosts_with_counts("gpu[1-2]:4,[fe80::1]", name="TFDP_HOSTS")
        [('gpu1', 4), ('gpu2', 4), ('[fe80::1]', 1)]

    Args:
        text: names in short form; IPv6 addresses stand in brackets.
        name: what holds the text, for messages.

    Raises:
        ValueError: `text` is no such list, or a host stands in it twice.
    """
    try:
        hosts = [(host, count) for item in split(text) for host, count in _hosts_with_count(item)]
        _check_number(sum(count for _, count in hosts), text)
    except ValueError as error:
        raise ValueError(
            f"{name} must list hosts with their numbers of workers, such as 'a:4,b:4', and IPv6 addresses in brackets. "
            f"Received: {name}={text!r} ({str(error).rstrip('.')})."
        ) from error
    names = [host for host, _ in hosts]
    twice = sorted({host for host in names if names.count(host) > 1}) if len(set(names)) < len(names) else []
    if twice:
        raise ValueError(f"{name} must name each host once. Received: {twice[0]!r} twice in {name}={text!r}.")
    return hosts


def _hosts_with_count(item: str) -> list[tuple[str, int]]:
    """Returns the hosts that one item such as "gpu[1-2]:4" stands for, each with its number of workers."""
    host, count = re.fullmatch(r"(.*?)(?::([0-9]{1,18}))?", item, re.DOTALL).groups()  # type: ignore[union-attr]
    is_ipv6 = re.fullmatch(r"\[[^\[\]]*:[^\[\]]*\]", host) is not None
    if not host or (":" in host and not is_ipv6) or count == "0":
        raise ValueError(f"not so {item!r}")
    return [(one, int(count or 1)) for one in ([host] if is_ipv6 else expand(host))]


def _numbers(text: str, whole: str) -> list[str]:
    """Returns the numbers of a bracket, as texts: ['08', '09', '10'] for "08-10"."""
    numbers: list[str] = []
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,18})(?:-([0-9]{1,18}))?", part.strip())
        if match is None:
            raise _error(f"a bracket must hold numbers and ranges such as 1,3-5, not {part!r}", whole)
        first, last = match[1], match[2] or match[1]
        if int(first) > int(last):
            raise _error(f"a range must not go down, as {part!r} does", whole)
        _check_number(len(numbers) + int(last) - int(first) + 1, whole)
        numbers += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return numbers


def _ranges(numbers: Sequence[str]) -> Iterator[str]:
    """Yields numbers as texts, those that follow each other as a range."""
    first = last = numbers[0]
    for number in [*numbers[1:], ""]:
        if number == str(int(last) + 1).zfill(len(first)):
            last = number
            continue
        yield first if first == last else f"{first}-{last}"
        first = last = number


def _around_number(name: str) -> tuple[str, str, str]:
    """Returns what stands before the last number of a name, the number (18 digits of it at most), and what follows.

    A name without a number comes back whole, with an empty number.
    """
    match = re.fullmatch(r"(.*?)([0-9]{1,18})([^0-9]*)", name, re.DOTALL)
    return (match[1], match[2], match[3]) if match else (name, "", "")


def _without_number(parts: tuple[str, str, str]) -> tuple[str, str, bool]:
    before, number, after = parts
    return before, after, bool(number)


def _check_number(number: int, text: str) -> None:
    if number > MAX_HOSTS:
        raise _error(f"it must stand for {MAX_HOSTS} hosts or workers at most", text)


def _error(expected: str, text: str) -> ValueError:
    return ValueError(f"A list of hosts looks like 'node[01-03,07],login': {expected}. Received: {text!r}.")
