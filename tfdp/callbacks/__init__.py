"""Callbacks for `model.fit` under the strategies of tfdp."""

from tfdp.callbacks.compression_state_backup import CompressionStateBackup
from tfdp.callbacks.data_position_backup import DataPositionBackup

__all__ = ["CompressionStateBackup", "DataPositionBackup"]
