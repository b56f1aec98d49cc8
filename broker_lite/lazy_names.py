"""Import the modules of a package on the first use of their names.

A package whose modules are slow to import offers its names without importing the modules::

    __getattr__, __dir__ = lazy_names(__name__, {"Bus": "blocking"})
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the functions ``__getattr__`` and ``__dir__`` of a package (PEP 562).

    ``homes`` holds the module of each name, relative to the package. An unknown name raises
    AttributeError.
    """
    known = vars(sys.modules[package])

    def import_name(name: str) -> Any:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        known[name] = getattr(importlib.import_module(f"{package}.{home}"), name)
        return known[name]

    return import_name, lambda: sorted({*known, *homes})
