"""The data of the page with a topic's records: the newest records, or the hits of a search."""

from __future__ import annotations

import time

from broker_lite.console.messages.query import CONTINUED_MAX, parse_query, search
from broker_lite.console.messages.rows import as_fields, shown_rows
from broker_lite.console.messages.search import as_text
from broker_lite.console.page_request import Data, PageRequest
from broker_lite.console.pages.topics import facts

VIEWS = ("records", "fields")


def messages(request: PageRequest) -> Data:
    query = parse_query(request)
    with request.desk.search():
        result = search(request, query, int(time.time() * 1000))
    rows = shown_rows(result.rows, hides_payloads=request.settings.hides_payloads)
    view = request.query.get("view", VIEWS[0])
    view = view if view in VIEWS else VIEWS[0]
    return {
        "topic": facts(request),
        "records": rows,
        "fields": as_fields(rows) if view == "fields" else None,
        "search": {
            "partition": request.query.get("partition", ""),
            "from": query.begin,
            "at": query.at,
            "view": view,
            **query.filters._asdict(),
        },
        "covered": {
            "records": result.records,
            "size_bytes": result.size_bytes,
            "seconds": round(result.seconds, 3),
            "stop": result.stop,
            "unread_partitions": len(result.left),
        },
        "left": as_text(result.left) if len(result.left) <= CONTINUED_MAX else "",
    }
