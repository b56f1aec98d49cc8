"""Import the modules of a package only when a name in them is first used.

A package whose modules are slow to import can thus offer their names without importing them. In
this example, the name ``Bus`` is in the package's module ``blocking``::

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
    """Return the functions ``__getattr__`` and ``__dir__`` for a package (PEP 562).

    ``homes`` maps each name to the module that defines it, relative to the package. ``__getattr__``
    raises AttributeError for other names."""
    known = vars(sys.modules[package])

    def import_name(name: str) -> Any:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        known[name] = getattr(importlib.import_module(f"{package}.{home}"), name)
        return known[name]

    return import_name, lambda: sorted({*known, *homes})
