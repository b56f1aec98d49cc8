"""Let Spark report an error of logbus as one line, without a traceback.

A Python process of Spark sends the text of an exception to the JVM, and ends. The text is a
traceback of 10 to 20 lines unless ``SPARK_HIDE_TRACEBACK`` is in the process's environment. A
``LogbusError`` names the object, the value and the remedy, so it needs no traceback. Other
exceptions keep theirs. ``error_line`` wraps every method that Spark calls.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from contextlib import contextmanager

from broker_lite.errors import LogbusError
from pyspark_logbus.worker_process import is_spark_process

HIDE = "SPARK_HIDE_TRACEBACK"
"""The environment variable with which Spark leaves out the traceback of an exception."""


class RefusedWhilePickledError(pickle.PickleError):
    """A pickle error that stands for a LogbusError which ``__getstate__`` raised.

    Spark's pickler passes a PickleError on to the user. It replaces any other exception by its own
    PicklingError, which would hide the LogbusError's message.
    """


@contextmanager
def pickled_error_line() -> Iterator[None]:
    """A context manager for the body of a ``__getstate__``: Spark reports a LogbusError of the
    body as one line, as with ``error_line``.

    Raises RefusedWhilePickledError in place of the LogbusError.
    """
    try:
        with error_line():
            yield
    except LogbusError as error:
        raise RefusedWhilePickledError(str(error)) from None


@contextmanager
def error_line() -> Iterator[None]:
    """Let Spark report, as one line, a LogbusError that the block raises. Also usable as a
    decorator."""
    try:
        yield
    except LogbusError:
        if is_spark_process():
            os.environ[HIDE] = "1"
        raise
