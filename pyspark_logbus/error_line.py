"""Spark reports an error of logbus as one line, without a traceback.

A Python process of Spark that raises sends the exception's text to the JVM, and ends. The text is a
traceback of 10 to 20 lines unless ``SPARK_HIDE_TRACEBACK`` is in the process's environment. A
``LogbusError`` names the object, the value and the remedy, so it is reported without frames. Other
exceptions keep their frames. Every method that Spark calls is wrapped, on the thread on which Spark
calls it.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from contextlib import contextmanager

from broker_lite.errors import LogbusError
from pyspark_logbus.worker_process import is_spark_process

HIDE = "SPARK_HIDE_TRACEBACK"


class RefusedWhilePickledError(pickle.PickleError):
    """An error of logbus in ``__getstate__``. Spark's pickler passes on errors of this family and
    hides any other behind a PicklingError of its own."""


@contextmanager
def pickled_error_line() -> Iterator[None]:
    """``error_line`` for ``__getstate__``. Raises RefusedWhilePickledError."""
    try:
        with error_line():
            yield
    except LogbusError as error:
        raise RefusedWhilePickledError(str(error)) from None


@contextmanager
def error_line() -> Iterator[None]:
    """Let Spark report a LogbusError that leaves the block as one line. Also a decorator."""
    try:
        yield
    except LogbusError:
        if is_spark_process():
            os.environ[HIDE] = "1"
        raise
