"""Data that every worker gets its right part of: each example once an epoch, in an order that all know."""

from tfdp.data.auditing import audit
from tfdp.data.findings import Audit
from tfdp.data.layout import Layout
from tfdp.data.sharding import ShardedDataset, shard
from tfdp.data.sources import Source

__all__ = ["Audit", "Layout", "ShardedDataset", "Source", "audit", "shard"]
