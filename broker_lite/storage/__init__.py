"""One replica's log on disk: segments, indexes, checkpoints and recovery. Start at README.md.

``LogManager`` opens a data directory. ``Log`` is the log of one partition. Storage reaches the
operating system through the ``Files`` interface, which ``OsFiles`` implements.
"""

from broker_lite.storage.files import File, Files, OsFiles
from broker_lite.storage.log import Log, LogAppendInfo
from broker_lite.storage.manager import LogManager, LogUsage
from broker_lite.storage.reader import LogSlice
from broker_lite.storage.scan import CorruptRange, InspectedBatch

__all__ = [
    "CorruptRange",
    "File",
    "Files",
    "InspectedBatch",
    "Log",
    "LogAppendInfo",
    "LogManager",
    "LogSlice",
    "LogUsage",
    "OsFiles",
]
