"""The Spark settings that halve the latency of a Python source and sink, in code.

``conf/spark-defaults.conf`` has the same two for whoever configures Spark by file; a test holds the
two together. Imports nothing of Spark; call before the session is built.
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
"""Of an AF_UNIX address on macOS; Linux allows 108."""
SOCKET_NAME_BYTES = 45
"""What Spark appends: a slash, a dot, a UUID and ``.sock``."""


def spark_conf(checkpoint_location: str | None = None) -> dict[str, str]:
    """Settings for ``SparkSession.builder.config(map=…)``.

    Sockets between the JVM and Python save 40 ms a hop; the checkpoint manager saves half of each
    commit, and is right where a rename is atomic: it is left out for a ``checkpoint_location`` that
    is neither local nor HDFS (by default it is taken to be local).
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
    """A folder short enough for a socket's path; None where the temporary one already is."""
    if len(os.fsencode(temporary)) + SOCKET_NAME_BYTES <= SOCKET_PATH_MAX:
        return None
    for folder in ("/tmp", "/var/tmp", "/dev/shm"):
        if os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK):
            return folder
    return None
