"""Makes garbage collections cheap in Spark's own Python processes.

PySpark's daemon collects garbage after every task and every planning call of each process that it
forked. A full collection visits every object of every module. With pyarrow, numpy and PySpark
loaded, it takes 5 to 25 ms of processor time, several times in the smallest query. The objects of
modules are never garbage.
"""

from __future__ import annotations

import gc
import sys

DAEMON = "pyspark.daemon"

_modules = 0
"""The number of loaded modules at the last ``gc.freeze``."""


def modules_are_no_garbage() -> None:
    """Exclude all live objects from garbage collections (``gc.freeze``) in a process that Spark's
    daemon forked. Do nothing in other processes, or if no module was imported since the last call.

    Call this after the imports of a task and before it has rows. A frozen object is still freed
    with its last reference; only frozen cycles would stay.
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
