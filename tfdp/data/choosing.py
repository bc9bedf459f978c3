"""Whether workers share files or examples, and why."""

from tfdp.data.layout import assigned
from tfdp.data.sources import Indexed, Source

_MOST_UNEVEN = 1.1  # how much more than the mean the busiest worker may read, for "auto" to share files


def choose(source: Source, num_workers: int, global_batch_size: int, by: str) -> tuple[str, str]:
    """Returns "files" or "examples", and the reason.

    Args:
        source: what is shared.
        num_workers: who share it.
        global_batch_size: examples of a step.
        by: "files", "examples", or "auto".

    Raises:
        ValueError: `by` is "files", and there are none, or not enough.
    """
    obstacle = _obstacle(source, num_workers, global_batch_size)
    if by == "files" and obstacle:
        raise ValueError(f"`by='files'` does not work here: {obstacle}. Use by='examples' or by='auto'.")
    if by != "auto":
        return by, "as was asked for"
    if obstacle:
        return "examples", obstacle
    if has_pieces(source, num_workers, global_batch_size):
        return "examples", "each worker reads a piece of its own"
    loads = [sum(source.part_sizes[part] for part in parts) for parts in assigned(source.part_sizes, num_workers)]
    mean = sum(loads) / num_workers
    if max(loads) > _MOST_UNEVEN * mean:
        return "examples", f"one worker would read {max(loads) / mean:.1f} times the mean of all, by files"
    return "files", f"{len(source.part_sizes)} files of much the same size for {num_workers} worker(s)"


def has_pieces(source: Source, num_workers: int, global_batch_size: int) -> bool:
    """Returns whether workers share examples by reading one piece each, of much the same size."""
    return source.splits and num_workers > 1 and global_batch_size % num_workers == 0


def _obstacle(source: Source, num_workers: int, global_batch_size: int) -> str:
    if isinstance(source, Indexed):
        return "each worker picks its own rows"
    if not source.part_sizes and source.splits:
        return "each worker reads a piece of its own"
    if not source.part_sizes:
        return "one stream, of which each worker reads all and takes its part"
    if len(source.part_sizes) < num_workers:
        return f"there are {len(source.part_sizes)} file(s) for {num_workers} workers"
    if global_batch_size % num_workers:
        return f"a batch of {global_batch_size} is no multiple of {num_workers} workers"
    return ""
