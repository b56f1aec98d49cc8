"""Run Python as if packages were not installed."""

from __future__ import annotations

import os
from pathlib import Path


def without(folder: Path, *packages: str) -> dict[str, str]:
    """Return the environment variables of a Python process, and of its child processes, whose
    imports of these packages fail. ``folder`` gets the file that blocks the imports."""
    folder.mkdir(exist_ok=True)
    blocked = f"import sys\nsys.modules |= dict.fromkeys({packages!r})\n"
    (folder / "sitecustomize.py").write_text(blocked, "utf-8")
    path = filter(None, (str(folder), os.environ.get("PYTHONPATH")))
    return {"PYTHONPATH": os.pathsep.join(path)}
