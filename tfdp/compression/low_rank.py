"""The compressor that sends a matrix as the product of two thin ones."""

import functools
import math
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp.compression.base import Compressor, Group, Reduced, all_finite, as_text, wide
from tfdp.compression.kernels import Kernels

_FRESH = 1e-3  # what fixed directions add to those of the last step
_MOST_UNROLLED = 8  # directions up to which XLA's one pass is quicker than a matmul; measured on CPUs


def power_sgd(rank: int = 4, *, min_compression_rate: float = 2.0) -> Compressor:
    """Returns the compressor that sends the best that a few directions can say of a matrix: PowerSGD.

    A gradient of two and more axes is seen as a matrix [-1, last axis], since Keras kernels keep output channels last.
    It travels as P [rows, rank] and Q [columns, rank] where these are fewer numbers by more than
    `min_compression_rate`. All others arrive exactly: they travel whole, beside the Ps. There are two sums, one after
    the other, in float32 (float64 for gradients of float64).

    Each step begins with the Q of the step before and so comes closer, as a power iteration does, to the largest
    singular vectors of the sum. A sum of no higher rank arrives exactly. Use it with `error_feedback`: without, all
    other directions are never sent.

    A NaN or infinity takes its whole matrix with it. The law `total == sum of sent` holds within the rounding of the
    largest of a matrix in float32; with more than 8 directions, on GPUs that multiply in TensorFloat-32, in that.

    Args:
        rank: columns of P and Q, at most those that a matrix can have.
        min_compression_rate: by how many times P and Q must be fewer numbers than a gradient; more than 0.

    Reference:
        Vogels, Karimireddy and Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization"
        (NeurIPS 2019), algorithm 1. Here Q is made orthonormal too: that changes no span, and bounds P. Before, a
        thousandth of fixed directions is added to it: without, gradients that share neither rows nor columns with
        those of the steps before would never be sent.
    """
    if isinstance(rank, bool) or not isinstance(rank, int):
        raise TypeError(f"`rank` must be an integer. Received: rank={rank!r}.")
    if rank < 1:
        raise ValueError(f"`rank` must be at least 1. Received: rank={rank}.")
    if isinstance(min_compression_rate, bool) or not isinstance(min_compression_rate, int | float):
        raise TypeError(
            f"`min_compression_rate` must be a number. Received: min_compression_rate={min_compression_rate!r}."
        )
    if not 0 < min_compression_rate < math.inf:
        raise ValueError(
            "`min_compression_rate` must be more than 0 and finite. "
            f"Received: min_compression_rate={min_compression_rate}."
        )
    return _PowerSGD(rank, float(min_compression_rate))


class _PowerSGD(Compressor):
    # As in the paper: M [rows, columns] is a member's matrix, P [rows, rank], Q [columns, rank]. Q travels on its side,
    # [rank, columns], as it comes from its product.

    def __init__(self, rank: int, min_compression_rate: float) -> None:
        self._rank, self._min_compression_rate = rank, min_compression_rate
        self._kernels = Kernels()

    def init(self, spec: tf.TensorSpec) -> Any:
        return {"q": self._first_q(spec.shape, wide(spec.dtype))} if self._is_compressed(spec.shape) else ()

    def reduce(self, gradients: Sequence[tf.Tensor], states: Sequence[Any], group: Group, *, name: str) -> Reduced:
        wholes = [tf.cast(gradient, wide(gradient.dtype)) for gradient in gradients]
        return self._reduce(wholes, gradients[0].dtype, states, group, name)[0]

    def reduce_with_residuals(
        self,
        gradients: Sequence[tf.Tensor],
        residuals: Sequence[tf.Tensor],
        states: Sequence[Any],
        group: Group,
        *,
        name: str,
    ) -> tuple[Reduced, list[tf.Tensor]]:
        wholes = [tf.cast(g, r.dtype) + r for g, r in zip(gradients, residuals, strict=True)]
        result, factors = self._reduce(wholes, gradients[0].dtype, states, group, name)
        unsent = [tf.zeros_like(whole) for whole in wholes]
        for i, (p, q) in factors.items():
            unsent[i] = self._by_kernel(_remainder, p, q, wholes[i])
        return result, unsent

    def _reduce(
        self, wholes: Sequence[tf.Tensor], dtype: tf.DType, states: Sequence[Any], group: Group, name: str
    ) -> tuple[Reduced, dict[int, tuple[tf.Tensor, tf.Tensor]]]:
        """Returns what `reduce` gives, in `dtype`, and P and this member's Q of those that are compressed."""
        thin = [i for i, whole in enumerate(wholes) if self._is_compressed(whole.shape)]
        full = [i for i in range(len(wholes)) if i not in thin]
        matrices = [tf.reshape(wholes[i], _matrix_shape(wholes[i].shape)) for i in thin]
        last_qs = [tf.convert_to_tensor(states[i]["q"]) for i in thin]

        ps = [self._p(*each, group.size) for each in zip(matrices, last_qs, strict=True)]
        sums = group.sum([*ps, *(wholes[i] for i in full)], name=f"{name} P")
        ps = [_orthonormal_or_nan(p) for p in sums[: len(thin)]]
        qs = [_q(*each, group.size) for each in zip(matrices, ps, strict=True)]
        q_sums = group.sum(qs, name=f"{name} Q") if thin else []

        total, sent, new = list(wholes), list(wholes), list(states)
        for i, part in zip(full, sums[len(thin) :], strict=True):
            total[i] = part
        factors = {}
        for i, p, q, q_sum, last_q in zip(thin, ps, qs, q_sums, last_qs, strict=True):
            scaled = p / _scale(p.shape[0], group.size)
            total[i], sent[i] = (self._by_kernel(_product, scaled, each, wholes[i]) for each in (q_sum, q))
            factors[i] = scaled, q
            new[i] = {"q": tf.where(_is_finite(q_sum), tf.transpose(q_sum), last_q)}
        total, sent = ([tf.cast(part, dtype) for part in parts] for parts in (total, sent))
        in_range = [_is_in_range(*each, group.size, dtype) for each in zip(ps, q_sums, strict=True)]
        finite = tf.cond(
            tf.reduce_all([True, *in_range]), lambda: all_finite([total[i] for i in full]), lambda: all_finite(total)
        )
        return Reduced(total, sent, new, finite), factors

    def _p(self, matrix: tf.Tensor, last_q: tf.Tensor, num_members: int) -> tf.Tensor:
        """Returns one member's P, scaled: [rows, rank]."""
        q, _ = tf.linalg.qr(_unit_columns(last_q) + _FRESH * self._first_q(matrix.shape, matrix.dtype))
        return tf.matmul(matrix, q * _scale(q.shape[0], num_members))

    def _by_kernel(self, kernel: Callable[..., tf.Tensor], p: tf.Tensor, q: tf.Tensor, whole: tf.Tensor) -> tf.Tensor:
        """Returns `kernel(p, q, whole)`, compiled where that is quicker: where P and Q are not multiplied by matmul."""
        tensors = p, q, whole
        compiles = q.shape[0] <= _MOST_UNROLLED
        return (self._kernels.compiled(kernel, kernel.__name__, tensors) if compiles else kernel)(*tensors)

    def _is_compressed(self, shape: tf.TensorShape) -> bool:
        if shape.rank < 2 or not shape.num_elements():
            return False
        rows, columns = _matrix_shape(shape)
        return (rows + columns) * min(self._rank, rows, columns) * self._min_compression_rate < rows * columns

    def _first_q(self, shape: tf.TensorShape, dtype: tf.DType) -> np.ndarray:
        """Returns independent directions to begin with, [columns, rank]: unit vectors, the same on every member."""
        rows, columns = _matrix_shape(shape)
        # Not the variable's name: Keras numbers layers on as models are made, and a worker may have made more of them.
        generator = np.random.RandomState(zlib.crc32(f"{rows} x {columns}".encode()))  # the same in all versions
        directions = generator.standard_normal([columns, min(self._rank, rows, columns)])
        return (directions / np.linalg.norm(directions, axis=0)).astype(dtype.as_numpy_dtype)

    def merge(self, states: Sequence[Any], num_members: int) -> Any:
        """Returns the state that all former members share."""
        del num_members
        return states[0]

    @property
    def delays(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"power_sgd(rank={self._rank}, min_compression_rate={as_text(self._min_compression_rate)})"


def _matrix_shape(shape: tf.TensorShape) -> tuple[int, int]:
    return shape.num_elements() // shape[-1], shape[-1]


def _is_finite(tensor: tf.Tensor) -> tf.Tensor:
    return tf.reduce_all(tf.math.is_finite(tensor))


def _unit_columns(columns: tf.Tensor) -> tf.Tensor:
    """Returns columns of norm 1; zeros where there is no normal number. They may be of any finite magnitudes."""
    largest = tf.reduce_max(tf.abs(columns), axis=0)
    is_there = largest >= np.finfo(columns.dtype.as_numpy_dtype).tiny
    # Relative to the largest magnitude, so that no square overflows or vanishes.
    columns = tf.where(is_there, columns / tf.where(is_there, largest, tf.ones_like(largest)), tf.zeros_like(columns))
    return tf.math.divide_no_nan(columns, tf.norm(columns, axis=0))


def _orthonormal_or_nan(p_sum: tf.Tensor) -> tf.Tensor:
    """Returns P, orthonormal; NaN in all of it, and so in the whole matrix, where a member's has NaN or infinity."""
    p, _ = tf.linalg.qr(_unit_columns(p_sum))  # orthonormal where columns are zeros or depend on each other too
    return tf.where(_is_finite(p_sum), p, tf.constant(np.nan, p.dtype))


def _q(matrix: tf.Tensor, p: tf.Tensor, num_members: int) -> tf.Tensor:
    """Returns one member's Q, scaled: [rank, columns]."""
    return tf.matmul(tf.transpose(p) * _scale(p.shape[0], num_members), matrix)


def _product(p: tf.Tensor, q: tf.Tensor, whole: tf.Tensor) -> tf.Tensor:
    """Returns the product of P and Q in the shape of `whole`."""
    if q.shape[0] > _MOST_UNROLLED:
        return tf.reshape(tf.matmul(p, q), whole.shape)
    directions = zip(tf.unstack(p, axis=1), tf.unstack(q), strict=True)
    first, *others = (column[:, tf.newaxis] * row for column, row in directions)
    return tf.reshape(functools.reduce(tf.add, others, first), whole.shape)


def _remainder(p: tf.Tensor, q: tf.Tensor, whole: tf.Tensor) -> tf.Tensor:
    """Returns what the product of P and Q leaves of `whole`."""
    return whole - _product(p, q, whole)


def _is_in_range(p: tf.Tensor, q_sum: tf.Tensor, num_members: int, dtype: tf.DType) -> tf.Tensor:
    """Returns whether the product of P and the sum of Qs is sure to be finite in `dtype`."""
    num_directions, num_rows = p.shape[1], p.shape[0]
    # No element of P is larger than 1. Half of the range: sums may round up.
    return tf.reduce_all(tf.abs(q_sum) <= float(dtype.max) / (2 * num_directions) * _scale(num_rows, num_members))


def _scale(num_elements: int, num_members: int) -> float:
    """Returns a power of two that keeps products with unit vectors of so many elements in range.

    Such a product is at most the square root of `num_elements` times as large as the matrix; then it is added up over
    the members. Half of what that asks for: sums may round up.
    """
    return 2.0 ** -(math.ceil(math.log2(num_members * math.sqrt(num_elements))) + 1)
