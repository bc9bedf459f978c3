"""Combinators that choose a compressor for each variable."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfdp.compression.base import Compressor, Group, Reduced
from tfdp.compression.identity import none


def by_size(compressor: Compressor, *, min_elements: int = 1024, otherwise: Compressor | None = None) -> Compressor:
    """Returns a compressor for gradients of at least so many elements; smaller ones are not worth the time.

    Args:
        compressor: for gradients of `min_elements` and more.
        min_elements: numbers in a gradient.
        otherwise: for all smaller ones; None sends them as they are.
    """
    return _at_least("by_size", compressor, otherwise, "min_elements", min_elements, lambda shape: shape.num_elements())


def by_shape(compressor: Compressor, *, min_rank: int = 2, otherwise: Compressor | None = None) -> Compressor:
    """Returns a compressor for gradients of at least so many axes: kernels, but not biases and the scales of norms.

    Args:
        compressor: for gradients of `min_rank` axes and more.
        min_rank: axes of a gradient.
        otherwise: for those of fewer axes; None sends them as they are.
    """
    return _at_least("by_shape", compressor, otherwise, "min_rank", min_rank, lambda shape: shape.rank)


def by_name(compressors: Mapping[str, Compressor], *, otherwise: Compressor | None = None) -> Compressor:
    """Returns a compressor that goes by the names of variables: the first pattern that is found in a path counts.

    Example:
        >>> by_name({"embedding": bf16(), "kernel$": error_feedback(int8())})
        by_name({'embedding': bf16(), 'kernel$': error_feedback(int8(block_size=256))})

    Args:
        compressors: regular expressions (`re.search`) on a variable's path, such as "sequential/dense/kernel".
        otherwise: for variables that no pattern is found in; None sends them as they are.
    """
    if not isinstance(compressors, Mapping) or not compressors:
        raise TypeError(
            "`compressors` must be a dictionary of patterns to compressors, with one entry or more. "
            f"Received: {compressors!r}."
        )
    rest = none() if otherwise is None else otherwise
    _check(*compressors.values(), rest)
    try:
        patterns = [(re.compile(pattern), compressor) for pattern, compressor in compressors.items()]
        for pattern, _ in patterns:
            pattern.search("")  # refuses patterns of bytes
    except (re.error, TypeError) as error:
        raise ValueError(
            f"The keys of `compressors` must be regular expressions: {error}. Received: {list(compressors)}."
        ) from error

    def choose(spec: tf.TensorSpec) -> Compressor:
        return next((compressor for pattern, compressor in patterns if pattern.search(spec.name or "")), rest)

    return _Chosen(choose, _text("by_name", repr(dict(compressors)), otherwise), (*compressors.values(), rest))


def _at_least(
    function: str,
    compressor: Compressor,
    otherwise: Compressor | None,
    option: str,
    least: int,
    measure: Callable[[tf.TensorShape], int],
) -> Compressor:
    """Returns a compressor for gradients whose shape measures `least` and more, the value of `option` of `function`."""
    if isinstance(least, bool) or not isinstance(least, int):
        raise TypeError(f"`{option}` must be an integer. Received: {option}={least!r}.")
    if least < 0:
        raise ValueError(f"`{option}` must be at least 0. Received: {option}={least}.")
    rest = none() if otherwise is None else otherwise
    _check(compressor, rest)

    def choose(spec: tf.TensorSpec) -> Compressor:
        return compressor if measure(spec.shape) >= least else rest

    return _Chosen(choose, _text(function, repr(compressor), otherwise, **{option: least}), (compressor, rest))


class _Chosen(Compressor):
    """Hands each gradient to the compressor that `choose` names for it."""

    def __init__(
        self, choose: Callable[[tf.TensorSpec], Compressor], text: str, candidates: Sequence[Compressor]
    ) -> None:
        self._choose, self._text, self._candidates = choose, text, candidates

    def for_variable(self, spec: tf.TensorSpec) -> Compressor:
        return self._choose(spec).for_variable(spec)

    def init(self, spec: tf.TensorSpec) -> Any:
        return self.for_variable(spec).init(spec)

    def reduce(self, gradients: Sequence[tf.Tensor], states: Sequence[Any], group: Group, *, name: str) -> Reduced:
        """Reduces gradients whose variables are not known, each by what its shape asks for."""
        chosen = [self.for_variable(tf.TensorSpec(gradient.shape, gradient.dtype)) for gradient in gradients]
        total, sent, new = list(gradients), list(gradients), list(states)
        for index, compressor in enumerate({id(one): one for one in chosen}.values()):
            members = [i for i, one in enumerate(chosen) if one is compressor]
            part = compressor.reduce(
                [gradients[i] for i in members], [states[i] for i in members], group, name=f"{name} choice {index}"
            )
            for i, *results in zip(members, part.total, part.sent, part.states, strict=True):
                total[i], sent[i], new[i] = results
        return Reduced(total, sent, new)

    def check_optimizer(self, optimizer: Any) -> None:
        for candidate in self._candidates:
            candidate.check_optimizer(optimizer)

    @property
    def delays(self) -> bool:
        return any(candidate.delays for candidate in self._candidates)

    @property
    def has_feedback(self) -> bool:
        return any(candidate.has_feedback for candidate in self._candidates)

    @property
    def sparse_dtype(self) -> tf.DType | None:
        dtypes = {candidate.sparse_dtype for candidate in self._candidates} - {None}
        return next(iter(dtypes)) if len(dtypes) == 1 else None

    def __repr__(self) -> str:
        return self._text


def _check(*compressors: Any) -> None:
    for compressor in compressors:
        if not isinstance(compressor, Compressor):
            raise TypeError(
                f"A choice must be between instances of tfdp.compression.Compressor. Received: {compressor!r}."
            )


def _text(function: str, first: str, otherwise: Compressor | None, **options: Any) -> str:
    words = [first, *(f"{name}={value!r}" for name, value in options.items())]
    return f"{function}({', '.join(words if otherwise is None else [*words, f'otherwise={otherwise!r}'])})"
