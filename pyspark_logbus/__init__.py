"""The public names of logbus, for Spark and without it: ``import pyspark_logbus as logbus``.

They are ``connect``, ``aconnect``, ``LocalCluster``, ``spark_conf``, ``register``, ``read``,
``LagListener``, ``LagMetrics``, ``errors`` and ``__version__``. Spark imports every ``pyspark_*``
package to find sources by name, and an exception in one package disables all sources. So this
module imports each name on its first use, and importing the module itself never fails.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from broker_lite import __version__ as __version__
    from broker_lite import errors as errors
    from broker_lite.bus import aconnect as aconnect
    from broker_lite.bus import connect as connect
    from broker_lite.local.cluster import LocalCluster as LocalCluster
    from pyspark_logbus.datasource import DefaultSource as DefaultSource
    from pyspark_logbus.datasource import register as register
    from pyspark_logbus.lag_metrics import LagMetrics as LagMetrics
    from pyspark_logbus.progress_listener import LagListener as LagListener
    from pyspark_logbus.settings import spark_conf as spark_conf
    from pyspark_logbus.topic_frame import read as read

_HOMES = {
    "DefaultSource": "pyspark_logbus.datasource",
    "register": "pyspark_logbus.datasource",
    "LagListener": "pyspark_logbus.progress_listener",
    "LagMetrics": "pyspark_logbus.lag_metrics",
    "spark_conf": "pyspark_logbus.settings",
    "read": "pyspark_logbus.topic_frame",
    "connect": "broker_lite.bus",
    "aconnect": "broker_lite.bus",
    "LocalCluster": "broker_lite.local.cluster",
    "errors": "broker_lite",
    "__version__": "broker_lite",
}
_SPARK_NAMES = ("DefaultSource", "register", "LagListener", "LagMetrics", "read")

__all__ = [
    "DefaultSource",
    "LagListener",
    "LagMetrics",
    "LocalCluster",
    "aconnect",
    "connect",
    "errors",
    "read",
    "register",
    "spark_conf",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "errors":
        return importlib.import_module("broker_lite.errors")
    try:
        value = getattr(importlib.import_module(home), name)
    except ImportError as error:
        if name in _SPARK_NAMES and (error.name or "").startswith("pyspark"):
            # Raise AttributeError: Spark takes it to mean that this package has no data source, and
            # continues.
            raise AttributeError(
                f"{name} needs PySpark 4.2 or later (pip install 'pyspark-logbus[spark]'): {error}"
            ) from error
        raise
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
