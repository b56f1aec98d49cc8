"""One replica's log on disk: segments, indexes, checkpoints, recovery. Start at README.md.

``LogManager`` opens a data directory, ``Log`` is a partition. The operating system is behind the
``Files`` port: ``OsFiles`` is real, ``MemFiles`` forgets what was not synced.
"""

from broker_lite.storage.files import File, Files, OsFiles
from broker_lite.storage.log import Appended, Log
from broker_lite.storage.manager import LogManager, LogUsage
from broker_lite.storage.memory import MemFiles, PowerCut
from broker_lite.storage.reader import LogSlice
from broker_lite.storage.scan import CorruptRange, InspectedBatch

__all__ = [
    "Appended",
    "CorruptRange",
    "File",
    "Files",
    "InspectedBatch",
    "Log",
    "LogManager",
    "LogSlice",
    "LogUsage",
    "MemFiles",
    "OsFiles",
    "PowerCut",
]
