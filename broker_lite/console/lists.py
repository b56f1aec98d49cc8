"""The tables in the console's pages: filter rows by a text, sort them by a column, and split them
into pages of 100 rows. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlencode

ROWS = 100
"""Maximum rows of one page of a table."""
Row = Mapping[str, Any]


class Column(NamedTuple):
    """A column of a table: its key in the rows, its heading, and the kind of its values.

    The kind decides the alignment of the values, and the sort order after a first click on the
    heading: ascending for texts, states and ids, and descending for other kinds."""

    key: str
    heading: str
    kind: str = "text"

    @property
    def begins_large(self) -> bool:
        return self.kind not in ("text", "state", "id")


class Listing(NamedTuple):
    """One page of a table: its rows, and the fields for links to other pages and sort orders.

    ``total`` counts the rows that match the filter on all pages, and ``known`` all rows of the
    table. ``query`` has the fields q, sort and order of the page's URL."""

    rows: list[Row]
    columns: tuple[Column, ...]
    total: int
    known: int
    page: int
    pages: int
    sort: str
    descending: bool
    text: str
    query: Mapping[str, str]

    def link(self, **changes: str) -> str:
        """Return the query part of a link (``?q=…&sort=…``) with the present fields, some of them
        replaced by ``changes``."""
        fields = {**self.query, **changes}
        return "?" + urlencode({key: value for key, value in fields.items() if value})

    def order(self, column: Column) -> str:
        """Return the query part of a link that sorts the table by ``column``, in reverse order if
        it is sorted by this column already."""
        descending = not self.descending if self.sort == column.key else column.begins_large
        return self.link(sort=column.key, order="desc" if descending else "asc", page="")


def listing(
    rows: Iterable[Row],
    columns: Sequence[Column],
    query: Mapping[str, str],
    *,
    sort: str,
    name: str = "name",
) -> Listing:
    """Return the page of a table that the fields q (a filter), sort, order and page of ``query``
    select.

    ``sort`` is the default sort column, and ``name`` the column in which q is searched. An invalid
    field counts as absent, and a page beyond the last one as the last."""
    everything = list(rows)
    text = query.get("q", "").strip()
    matching = [row for row in everything if text.lower() in str(row[name]).lower()]
    large = {column.key: column.begins_large for column in columns}
    chosen = query.get("sort", "")
    chosen = chosen if chosen in large else sort
    order = query.get("order", "")
    descending = order == "desc" if order in ("asc", "desc") else large[chosen]
    matching.sort(key=lambda row: _natural(row[name]))
    # Unknown values come last in ascending and in descending order.
    known = [row for row in matching if row[chosen] is not None]
    known.sort(key=lambda row: _natural(row[chosen]), reverse=descending)
    matching = known + [row for row in matching if row[chosen] is None]
    pages = max(1, -(-len(matching) // ROWS))
    page_text = query.get("page", "")
    page = (
        min(int(page_text), pages)
        if page_text.isascii() and page_text.isdigit() and len(page_text) < 9
        else 1
    )
    page = max(1, page)
    fields = {key: query[key] for key in ("q", "sort", "order") if query.get(key)}
    return Listing(
        matching[(page - 1) * ROWS : page * ROWS],
        tuple(columns),
        len(matching),
        len(everything),
        page,
        pages,
        chosen,
        descending,
        text,
        fields,
    )


def _natural(value: Any) -> Any:
    """Return the sort key of a value. Numbers in a text sort as numbers, so orders-2 comes before
    orders-10."""
    if not isinstance(value, str):
        return value
    parts = _DIGITS.split(value)
    # re.split with a group returns text and digits in turn, so the odd parts are numbers.
    return [(int(part) if n % 2 else -1, part) for n, part in enumerate(parts)]


_DIGITS = re.compile(r"([0-9]{1,18})")
