"""What Spark's own Python processes do after each piece of work, made cheap.

PySpark's daemon collects garbage after every task and every planning call of each process that it
forked. A full collection looks at every object of every module: 5 to 25 ms of processor time where
pyarrow, numpy and PySpark are loaded, several times for the smallest query. Modules are no garbage.
"""

from __future__ import annotations

import gc
import sys

DAEMON = "pyspark.daemon"

_modules = 0
"""How many modules were loaded when their objects were last set apart."""


def modules_are_no_garbage() -> None:
    """Set what is alive now apart from what garbage collections look at, in a process that Spark's
    daemon forked; anywhere else, and where nothing was imported since the last time, nothing.

    Call it where a process has just imported what its work needs, before it has rows in hand. What
    is set apart still goes with its last reference; only cycles in it would stay.
    """
    global _modules
    if len(sys.modules) == _modules or not is_forked_by_daemon():
        return
    gc.freeze()
    _modules = len(sys.modules)


def is_forked_by_daemon() -> bool:
    """Whether this is a process of ``python -m pyspark.daemon``."""
    return _main_module() == DAEMON


def is_spark_process() -> bool:
    """Whether Spark started this process, by its daemon or as the runner of a streaming source."""
    return _main_module().startswith("pyspark.")


def _main_module() -> str:
    """The module that ``python -m`` runs; empty for a script."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return "" if spec is None else str(spec.name)
