"""Gradient compression: what replicas send to each other instead of the full gradient."""

from tfdp.compression.base import Codec, Compressor, Reduced, all_finite, describe
from tfdp.compression.blocks import BlockCodec
from tfdp.compression.casting import bf16, fp16
from tfdp.compression.deep_gradient import dgc
from tfdp.compression.drawing import random_k
from tfdp.compression.exchanged import exchanged
from tfdp.compression.feedback import error_feedback
from tfdp.compression.float8 import e4m3, e5m2
from tfdp.compression.identity import none
from tfdp.compression.low_rank import power_sgd
from tfdp.compression.momentum import with_momentum
from tfdp.compression.quantizing import int4, int8, natural, qsgd, tern_grad
from tfdp.compression.registry import get
from tfdp.compression.selecting import by_name, by_shape, by_size
from tfdp.compression.signs import sign
from tfdp.compression.sparsifying import exact_top_k, top_k
from tfdp.compression.summed import summed
from tfdp.compression.thresholding import threshold
from tfdp.compression.warming_up import warm_up

__all__ = [
    "BlockCodec",
    "Codec",
    "Compressor",
    "Reduced",
    "all_finite",
    "bf16",
    "by_name",
    "by_shape",
    "by_size",
    "describe",
    "dgc",
    "e4m3",
    "e5m2",
    "error_feedback",
    "exact_top_k",
    "exchanged",
    "fp16",
    "get",
    "int4",
    "int8",
    "natural",
    "none",
    "power_sgd",
    "qsgd",
    "random_k",
    "sign",
    "summed",
    "tern_grad",
    "threshold",
    "top_k",
    "warm_up",
    "with_momentum",
]
