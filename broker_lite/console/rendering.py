"""Render the data of pages as HTML and as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

from broker_lite import __version__
from broker_lite.console.charts import chart
from broker_lite.console.formats import FILTERS
from broker_lite.console.lists import Listing
from broker_lite.console.messages.values import preview

FOLDER = Path(__file__).parent
STATIC = FOLDER / "static"


def environment() -> Environment:
    """Return the Jinja environment of the HTML templates. It escapes every text."""
    templates = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=select_autoescape(("html",), default=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters |= FILTERS
    templates.filters["chart"] = chart
    templates.filters["preview"] = preview
    templates.globals["version"] = __version__
    return templates


def as_json(data: Any) -> bytes:
    """Return a page's data as JSON."""
    return json.dumps(_plain(data), ensure_ascii=False, allow_nan=False).encode()


def _plain(data: Any) -> Any:
    """Return a page's data as values that ``json`` can write. A table (``Listing``) becomes a
    dictionary of its rows, page numbers, total and order."""
    if isinstance(data, Listing):
        return {
            "rows": _plain(data.rows),
            "total": data.total,
            "page": data.page,
            "pages": data.pages,
            "sort": data.sort,
            "order": "desc" if data.descending else "asc",
        }
    if isinstance(data, dict):
        return {key: _plain(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_plain(value) for value in data]
    return data
