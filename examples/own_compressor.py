"""A compressor of one's own: a step sends every `stride`-th row, each in its turn. Error feedback keeps the rest."""

import tensorflow as tf

from tfdp.compression import Compressor, Reduced


class RowsInTurn(Compressor):
    def __init__(self, stride):
        self.stride = stride

    def __repr__(self):  # workers compare it
        return f"RowsInTurn({self.stride})"

    def init(self, spec):
        return tf.constant(0)  # whose turn it is

    def reduce(self, gradients, states, group, *, name):
        rows = [tf.range(-(-g.shape[0] // self.stride)) * self.stride + turn for g, turn in zip(gradients, states)]
        rows = [tf.minimum(r, g.shape[0] - 1)[:, tf.newaxis] for r, g in zip(rows, gradients)]
        parts = [tf.gather_nd(g, r) for g, r in zip(gradients, rows)]
        totals = group.sum(parts, name=name)
        total, sent = ([tf.tensor_scatter_nd_update(tf.zeros_like(g), r, v) for g, r, v in zip(gradients, rows, values)]
                       for values in (totals, parts))  # fmt: skip
        return Reduced(total, sent, [(turn + 1) % self.stride for turn in states])
