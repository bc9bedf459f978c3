"""Callbacks for `model.fit` under the strategies of tfdp."""

from tfdp.callbacks.compression_state_backup import CompressionStateBackup

__all__ = ["CompressionStateBackup"]
