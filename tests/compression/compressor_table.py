"""The compressors that the laws are tested on, and what a run of one gives."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import tensorflow as tf

from tfdp import compression
from tfdp.collectives import loopback
from tfdp.compression.kernels import Kernels


class Code(NamedTuple):
    """A compressor that is no combination, and what its laws depend on.

    Attributes:
        compressor: built once, since it keeps its compiled kernels.
        travels: the dtype in which partial sums are rounded on their way; None where gradients travel as they are, or
            are summed in their own precision.
        largest_sum: share of the largest number of a dtype up to which a sum of magnitudes stays finite.
        step: of a block code: the largest distance of neighbouring numbers, where the largest of a block is 1.
        block_size: of a block code.
        is_unbiased: whether what arrives is right on average.
        poisons_blocks: whether NaN takes its whole block with it.
        compresses: shape -> whether a gradient of it is compressed; others travel as they are.
        rounds_like_largest: whether an element is rounded as the largest of its gradient is.
        overshoot: how many times as large as the largest of a gradient what stands for an element may be.
        poisons_tensors: whether NaN takes its whole tensor with it, where it is compressed.
        sends_a_part: whether some elements are sent as they are and the others not at all.
        is_gathered: whether each message goes to all members as it is, so that bytes grow with their number.
        has_static_size: whether messages have the same size in every step.
        has_feedback: whether what is not sent is kept for later, so that error feedback is refused.
    """

    compressor: compression.Compressor
    travels: tf.DType | None = None
    largest_sum: float = 1.0
    step: float = 0.0
    block_size: int = 0
    is_unbiased: bool = False
    poisons_blocks: bool = False
    compresses: Callable[[tuple[int, ...]], bool] = lambda shape: True
    rounds_like_largest: bool = False
    overshoot: float = 1.0
    poisons_tensors: bool = False
    sends_a_part: bool = False
    is_gathered: bool = False
    has_static_size: bool = True
    has_feedback: bool = False

    @property
    def error(self) -> float:
        """The largest error of one encoding, where the largest of a block is 1."""
        rounds_by_chance_or_not_at_all = self.is_unbiased or self.poisons_blocks
        return self.step if rounds_by_chance_or_not_at_all else self.step / 2


# A new compressor joins all laws by one line.
CODES = {
    "none": Code(compression.none()),
    "bf16": Code(compression.bf16(), travels=tf.bfloat16, largest_sum=0.85),
    "fp16": Code(compression.fp16(), travels=tf.float16),
    "int8": Code(compression.int8(), step=1 / 127, block_size=256),
    "int4": Code(compression.int4(), step=1 / 7, block_size=256),
    "e4m3": Code(compression.e4m3(), step=32 / 448, block_size=256),
    "e5m2": Code(compression.e5m2(), step=8192 / 57344, block_size=256),
    "sign": Code(compression.sign(), step=2, block_size=1024, poisons_blocks=True),
    "qsgd": Code(compression.qsgd(), step=1 / 7, block_size=256, is_unbiased=True),
    "qsgd of 8 bits": Code(compression.qsgd(bits=8), step=1 / 127, block_size=256, is_unbiased=True),
    "tern_grad": Code(compression.tern_grad(), step=1, block_size=1024, is_unbiased=True),
    "natural": Code(compression.natural(), step=1, block_size=1024, is_unbiased=True, largest_sum=0.5),
    "power_sgd": Code(
        compression.power_sgd(),
        poisons_tensors=True,
        compresses=lambda shape: shape == (33, 65),
        rounds_like_largest=True,
        overshoot=33**0.5,  # a direction may gather a column of equal elements in one of them
    ),
    "top_k": Code(compression.top_k(0.25), sends_a_part=True, is_gathered=True),
    "exact_top_k": Code(compression.exact_top_k(), sends_a_part=True, is_gathered=True),
    "random_k": Code(compression.random_k(), sends_a_part=True, poisons_tensors=True),
    "threshold": Code(compression.threshold(0.5), sends_a_part=True, is_gathered=True, has_static_size=False),
    "with_momentum": Code(compression.with_momentum(), has_feedback=True, rounds_like_largest=True),
    "dgc": Code(compression.dgc(0.01), sends_a_part=True, is_gathered=True, has_feedback=True),
}

# So does a new combinator. Each keeps the bounds of what it is given.
COMBINATORS: dict[str, Callable[[compression.Compressor], compression.Compressor]] = {
    "{}": lambda code: code,
    "error_feedback({})": compression.error_feedback,
    "error_feedback({}, decay=0.5)": lambda code: compression.error_feedback(code, decay=0.5),
    "by_size({})": lambda code: compression.by_size(code, min_elements=2),
    "by_shape({})": lambda code: compression.by_shape(code, min_rank=0),
    "by_name({})": lambda code: compression.by_name({"": code}),
    "warm_up({})": lambda code: compression.warm_up(code, steps=1),
    "error_feedback(by_size({}))": lambda code: compression.error_feedback(compression.by_size(code, min_elements=2)),
    "error_feedback(warm_up({}))": lambda code: compression.error_feedback(compression.warm_up(code, steps=1)),
    "warm_up(error_feedback({}))": lambda code: compression.warm_up(compression.error_feedback(code), steps=1),
}
# What is tested on gradients of all dtypes in groups of all sizes; the other combinators add no arithmetic of a dtype.
FULLY_TESTED = ("{}", "error_feedback({})")


class Row(NamedTuple):
    """A compressor of the table.

    Attributes:
        code: what it is made of.
        combinator: what was made of the code.
        compressor: the combination.
    """

    code: Code
    combinator: str
    compressor: compression.Compressor


# One code of each kind, for what does not depend on the code: summed as it is, to the nearest, by chance, by positions,
# in two sums.
KINDS_OF_CODES = ("bf16", "int8", "qsgd", "top_k", "power_sgd")
# Those that are combined in all ways: one of each kind, the one of a bit, and one that has momentum of its own.
COMBINED = (*KINDS_OF_CODES, "sign", "dgc")

ROWS = {
    combinator.format(name): Row(code, combinator, combine(code.compressor))
    for combinator, combine in COMBINATORS.items()
    for name, code in CODES.items()
    if not (code.has_feedback and "error_feedback" in combinator)
    if combinator in FULLY_TESTED or name in COMBINED
}
BLOCK_CODES = {name: code for name, code in CODES.items() if code.block_size}

DTYPES = [tf.float16, tf.bfloat16, tf.float32, tf.float64]
SIZES = [1, 2, 3, 4]
# Of less than a block, of several, and of no whole number of them. They travel together.
SHAPES = [(), (1,), (3, 1, 5), (33, 65), (3,)]

# Half a unit in the last place, and the smallest positive number.
ROUNDOFF = {tf.float16: 2.0**-11, tf.bfloat16: 2.0**-8, tf.float32: 2.0**-24, tf.float64: 2.0**-53}
SMALLEST = {tf.float16: 2.0**-24, tf.bfloat16: 2.0**-133, tf.float32: 2.0**-149, tf.float64: 2.0**-1074}


class Run(NamedTuple):
    """What several steps gave.

    Attributes:
        gradients: by step and member, a list of tensors.
        results: by step and member.
        first_states: of each gradient.
    """

    gradients: Sequence[Sequence[Sequence[tf.Tensor]]]
    results: Sequence[Sequence[compression.Reduced]]
    first_states: Sequence[Any]

    def states(self, step: int, member: int) -> Sequence[Any]:
        """Returns the states with which a member began a step."""
        return self.results[step - 1][member].states if step else self.first_states


def run(compressor, gradients, adapt=lambda group: group) -> Run:
    """Reduces `gradients`, by step and member a list of tensors, with the states of each step given to the next.

    Args:
        compressor: what reduces.
        gradients: by step and member.
        adapt: makes of each member's communicator what the compressor is given.
    """
    first = [compressor.init(tf.TensorSpec(gradient.shape, gradient.dtype)) for gradient in gradients[0][0]]

    def member(communicator):
        group = adapt(communicator)
        states, results = first, []
        for gradients_of_step in gradients:
            results.append(compressor.reduce(gradients_of_step[group.rank], states, group, name="gradients"))
            states = results[-1].states
        return results

    by_member = loopback(len(gradients[0]), member)
    return Run(gradients, list(zip(*by_member, strict=True)), first)


def reduce(compressor, gradients_of_members):
    """Returns what each member gets for its gradients in a first step."""
    return run(compressor, [gradients_of_members]).results[0]


def totals(compressor, values_of_members, dtype=tf.float32):
    """Returns the total that each member gets where each contributes a vector."""
    results = reduce(compressor, [[tf.constant(values, dtype)] for values in values_of_members])
    return [exact(result.total[0]) for result in results]


def random_gradients(size, dtype, shapes=SHAPES, seed=0):
    """Returns for each member a tensor of each shape, with magnitudes over several powers of two."""
    generator = np.random.default_rng(seed)

    def tensor(shape):
        magnitude = 2.0 ** generator.uniform(-6, 3, shape)
        return tf.cast(tf.constant(magnitude * generator.standard_normal(shape)), dtype)

    return [[tensor(shape) for shape in shapes] for _ in range(size)]


class Kind(NamedTuple):
    """With what a law is tested.

    Attributes:
        dtype: of the gradients.
        size: number of members.
        is_compiled: whether kernels are compiled, which takes most of a test's time; otherwise they run op by op.
    """

    dtype: tf.DType
    size: int
    is_compiled: bool


def kinds(row: Row) -> list[Kind]:
    """Returns with what laws of `row` are tested."""
    others = [dtype for dtype in DTYPES if dtype != tf.float32]
    if row.code.sends_a_part:  # in one stage, and the same for every member more: one compiled size is enough
        if row.combinator not in FULLY_TESTED:
            return [Kind(tf.float32, 3, False)]
        in_single = [Kind(tf.float32, size, is_compiled=size == 3) for size in (1, 2, 3)]
        return [*in_single, *(Kind(dtype, 3, False) for dtype in others)]
    if row.combinator not in FULLY_TESTED:
        is_of_a_kind = row.code in [CODES[name] for name in KINDS_OF_CODES]
        # Combined, a code has the kernels that it has alone: one of each kind shows that they go together.
        return [Kind(tf.float32, size, is_of_a_kind and "by_size" not in row.combinator) for size in (2, 3)]
    compiled = [Kind(tf.float32, size, True) for size in (1, 2, 3)]
    return [*compiled, Kind(tf.float32, 4, False), *(Kind(dtype, 3, False) for dtype in others)]


@contextlib.contextmanager
def kernels(*, are_compiled: bool) -> Iterator[None]:
    """Lets compressors run op by op where kernels are not to be compiled."""
    with contextlib.ExitStack() as stack:
        if not are_compiled:
            plain = mock.patch.object(Kernels, "compiled", lambda self, kernel, *like: kernel)
            stack.enter_context(plain)
        yield


@functools.cache
def random_run(name: str, kind: Kind) -> Run:
    """Returns a run of three steps with random gradients in `SHAPES`, one for all tests."""
    gradients = [random_gradients(kind.size, kind.dtype, seed=step) for step in range(3)]
    with kernels(are_compiled=kind.is_compiled):
        return run(ROWS[name].compressor, gradients)


def exact(tensor):
    return tf.cast(tensor, tf.float64).numpy()


def bits(nest):
    """Returns the bytes of all tensors of a nest."""
    return [tf.convert_to_tensor(leaf).numpy().tobytes() for leaf in tf.nest.flatten(nest) if leaf is not None]


def residuals(states):
    """Returns the residuals within the states of gradients."""
    return [state["inner"]["residual"] if "residual" not in state else state["residual"] for state in states]


def largest_of_blocks(values, block_size):
    """Returns for each element the largest magnitude of its block."""
    flat = np.abs(np.ravel(values))
    padded = np.pad(flat, [0, -flat.size % block_size]).reshape([-1, block_size])
    largest = np.repeat(np.max(padded, axis=1, initial=0), block_size)
    return largest[: flat.size].reshape(np.shape(values))
