"""Callbacks for `model.fit` under the strategies of tfdp."""

from tfdp.callbacks.backup_and_restore import BackupAndRestore
from tfdp.callbacks.compression_state_backup import CompressionStateBackup
from tfdp.callbacks.csv_logger import CSVLogger
from tfdp.callbacks.data_position_backup import DataPositionBackup
from tfdp.callbacks.model_checkpoint import ModelCheckpoint
from tfdp.callbacks.tensor_board import TensorBoard
from tfdp.callbacks.throughput_monitor import ThroughputMonitor

__all__ = [
    "BackupAndRestore",
    "CSVLogger",
    "CompressionStateBackup",
    "DataPositionBackup",
    "ModelCheckpoint",
    "TensorBoard",
    "ThroughputMonitor",
]
