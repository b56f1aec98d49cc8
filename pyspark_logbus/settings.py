"""The Spark settings that halve the latency of a Python source and sink.

``conf/spark-defaults.conf`` has the same settings; a test compares them. The module imports nothing
of Spark, because ``spark_conf`` is called before the session exists.
"""

from __future__ import annotations

import os
import tempfile

SOCKETS = "spark.python.unix.domain.socket.enabled"
SOCKET_FOLDER = "spark.python.unix.domain.socket.dir"
CHECKPOINTS = "spark.sql.streaming.checkpointFileManagerClass"
CHECKPOINT_MANAGER = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
SOCKET_PATH_MAX = 104
"""Maximum bytes of an AF_UNIX address on macOS. Linux allows 108."""
SOCKET_NAME_BYTES = 45
"""Number of bytes that Spark appends to its socket folder's path for a socket: a slash, a dot, a
UUID and ``.sock``."""


def spark_conf(checkpoint_location: str | None = None) -> dict[str, str]:
    """Return settings for ``SparkSession.builder.config(map=…)``.

    The settings choose Unix sockets between the JVM and Python, which save 40 ms in each direction,
    and one of Spark's checkpoint managers, which halves the time of each commit. This manager needs
    atomic renames, so the result includes it only for a ``checkpoint_location`` on a local disk
    (the default) or HDFS.
    """
    conf = {SOCKETS: "true"}
    folder = _short_folder(tempfile.gettempdir())
    if folder is not None:
        conf[SOCKET_FOLDER] = folder
    scheme = (checkpoint_location or "").partition("://")[0] if checkpoint_location else ""
    if "://" not in (checkpoint_location or "") or scheme in ("file", "hdfs"):
        conf[CHECKPOINTS] = CHECKPOINT_MANAGER
    return conf


def _short_folder(temporary: str) -> str | None:
    """Return a folder for Spark's sockets, to use in place of ``temporary``, whose path is too long
    for an AF_UNIX address.

    Return None if the path of ``temporary`` is short enough, or if this process can write to no
    folder with a shorter path.
    """
    if len(os.fsencode(temporary)) + SOCKET_NAME_BYTES <= SOCKET_PATH_MAX:
        return None
    for folder in ("/tmp", "/var/tmp", "/dev/shm"):
        if os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK):
            return folder
    return None
