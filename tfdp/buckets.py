"""Which gradients travel together, and in which order."""

from collections.abc import Hashable, Sequence

DEFAULT_BUCKET_BYTES = 1 << 20


def plan_buckets(num_bytes: Sequence[int], kinds: Sequence[Hashable], bucket_bytes: int) -> list[list[int]]:
    """Returns the buckets, each a list of indices into `num_bytes`, in the order in which they fill.

    Variables are created from the first layer to the last, and backpropagation finishes the last layer's gradients
    first: the indices are taken from the end, so that a bucket can leave while earlier layers are still computed
    (Li et al., PyTorch Distributed, VLDB 2020, section 3.2.3). A gradient larger than a bucket has one to itself.

    Args:
        num_bytes: bytes of each gradient, in the order of creation of their variables.
        kinds: what must be equal within a bucket (the dtype), one for each gradient.
        bucket_bytes: bytes that a bucket holds at most.
    """
    buckets: list[list[int]] = []
    open_buckets: dict[Hashable, tuple[list[int], int]] = {}
    for index in reversed(range(len(num_bytes))):
        bucket, filled = open_buckets.get(kinds[index], ([], 0))
        if bucket and filled + num_bytes[index] > bucket_bytes:
            bucket, filled = [], 0
        if not bucket:
            buckets.append(bucket)
        bucket.append(index)
        open_buckets[kinds[index]] = (bucket, filled + num_bytes[index])
    return buckets


def deal(num_bytes: Sequence[int], num_turns: int) -> list[int]:
    """Returns for each bucket its turn, 0 to `num_turns` - 1, so that all turns have about as many bytes.

    Args:
        num_bytes: of each bucket, in their order.
        num_turns: between how many to deal.
    """
    filled = [0] * num_turns
    turns = []
    for size in num_bytes:
        turns.append(filled.index(min(filled)))
        filled[turns[-1]] += size
    return turns
