"""Make garbage collections cheap in Spark's own Python processes.

A process that PySpark's daemon forked collects garbage after every task and every planning call. A
full collection visits every object of every module. With pyarrow, numpy and PySpark loaded, this
takes 5 to 25 ms of processor time, several times in the smallest query. Objects of modules live
until the process ends, so these visits free nothing. This module excludes such objects from
collections (``gc.freeze``).
"""

from __future__ import annotations

import gc
import sys

DAEMON = "pyspark.daemon"
"""The module that Spark starts to fork its Python workers."""

_modules = 0
"""The number of loaded modules at the last ``gc.freeze``."""


def modules_are_no_garbage() -> None:
    """Exclude all live objects, mostly those of modules, from garbage collections in a process that
    Spark's daemon forked. Do nothing in other processes, or if no module was imported since the
    last call.

    Call this after a task's imports and before the task has rows. A frozen object is still freed
    with its last reference. Only frozen reference cycles would stay in memory.
    """
    global _modules
    if len(sys.modules) == _modules or not is_forked_by_daemon():
        return
    gc.freeze()
    _modules = len(sys.modules)


def is_forked_by_daemon() -> bool:
    """Return whether PySpark's daemon forked this process."""
    return _main_module() == DAEMON


def is_spark_process() -> bool:
    """Return whether Spark started this process, through its daemon or as the runner of a stream's
    source."""
    return _main_module().startswith("pyspark.")


def _main_module() -> str:
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return "" if spec is None else str(spec.name)
