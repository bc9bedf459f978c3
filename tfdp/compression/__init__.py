"""Gradient compression: what replicas send to each other instead of the full gradient."""

from tfdp.compression.base import Codec, Compressor, Reduced
from tfdp.compression.casting import bf16, fp16
from tfdp.compression.identity import none
from tfdp.compression.registry import get
from tfdp.compression.summed import summed

__all__ = ["Codec", "Compressor", "Reduced", "bf16", "fp16", "get", "none", "summed"]
