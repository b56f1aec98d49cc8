"""How Spark reports an error of logbus: by the error's own line, without a traceback around it.

A Python process of Spark that raises sends the exception's text to the JVM, and ends. The text is a
traceback of 10 to 20 lines, unless the process has ``SPARK_HIDE_TRACEBACK`` in its environment. A
``LogbusError`` names the object, the value and the cure, so its frames only hide it. The traceback
of any other exception stays: its frames say what logbus did wrong. Every method that Spark calls is
wrapped; on the thread that Spark calls it on.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from broker_lite.errors import LogbusError
from pyspark_logbus.worker_process import is_spark_process

HIDE = "SPARK_HIDE_TRACEBACK"


@contextmanager
def error_line() -> Iterator[None]:
    """Let Spark report a LogbusError that leaves the block as one line. A decorator too."""
    try:
        yield
    except LogbusError:
        if is_spark_process():
            os.environ[HIDE] = "1"
        raise
