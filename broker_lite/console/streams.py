"""The two streamed responses: a live tail as server-sent events, and an exported file of
records."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import anyio
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from broker_lite.console.memory import release
from broker_lite.console.messages.export import TYPES, export
from broker_lite.console.messages.query import parse_query
from broker_lite.console.messages.rows import shown_rows
from broker_lite.console.messages.tail import LiveTail
from broker_lite.console.page_request import DOWNLOADS, TAILS, PageRequest
from broker_lite.errors import LogbusError, SearchLimitError
from broker_lite.model import TopicPartition

BLOCK = 256 * 1024
"""Maximum bytes of one part of a file that the console sends."""
SIGNED_OUT = "The live tail ended with your session. Sign in again."
Render = Callable[[list[dict[str, Any]]], str]


class ClosingResponse(StreamingResponse):
    """A streamed response that calls ``end`` once the response is over, even if the client
    disconnects before the first byte. ``end`` runs in a thread, because it may block."""

    def __init__(self, content: Any, end: Callable[[], None], **options: Any) -> None:
        super().__init__(content, **options)
        self._end = end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            with anyio.CancelScope(shield=True):
                await run_in_threadpool(self._end)


def file_of(request: PageRequest) -> Response:
    """Return a response with the records of a search as a file that the browser saves. Raises
    SearchLimitError if too many searches or downloads run."""
    form = request.query.get("format", "jsonl")
    if not request.desk.downloads.acquire(blocking=False):
        raise SearchLimitError(f"{DOWNLOADS} downloads run already; cancel one, or try again soon")
    try:
        with request.desk.search():
            exported = export(request, form, int(time.time() * 1000))
    except BaseException:
        request.desk.downloads.release()
        raise

    def end() -> None:
        exported.file.close()
        request.desk.downloads.release()

    name = f"{request.path['topic']}{'-part' if exported.is_part else ''}.{form}"
    return ClosingResponse(
        iter(lambda: exported.file.read(BLOCK), b""),
        end,
        media_type=TYPES[form],
        headers={
            "Content-Disposition": f'attachment; filename="{name}"',
            "X-Logbus-Records": str(exported.records),
        },
    )


def tail_of(
    request: PageRequest, event_id: str, render: Render, is_signed_in: Callable[[], bool]
) -> Response:
    """Return a response that sends new records as events, until the browser disconnects or its
    session ends. Raises SearchLimitError if too many live tails run."""
    query = parse_query(request)
    if not request.desk.tails.acquire(blocking=False):
        raise SearchLimitError(f"{TAILS} live tails run already; close one of their pages")
    tps = [TopicPartition(query.topic, number) for number in query.partitions]
    try:
        tail = LiveTail(request.bus, tps, query.filters, event_id)
    except BaseException:
        request.desk.tails.release()
        raise

    def end() -> None:
        tail.close()
        release()
        request.desk.tails.release()

    return ClosingResponse(
        _events(tail, render, is_signed_in, hides_payloads=request.settings.hides_payloads),
        end,
        media_type="text/event-stream",
    )


def _events(
    tail: LiveTail, render: Render, is_signed_in: Callable[[], bool], *, hides_payloads: bool
) -> Iterator[str]:
    # The first event gives the browser the positions from which it continues after a disconnect,
    # even if no record arrives before.
    yield f"retry: 1000\nid: {tail.event_id}\nevent: begun\ndata: {{}}\n\n"
    try:
        for update in tail.updates():
            if not is_signed_in():
                yield f"event: ended\ndata: {json.dumps(SIGNED_OUT)}\n\n"
                return
            if update is None:
                # Send a comment line, which browsers ignore: if the browser has disconnected, the
                # write fails, which ends this stream.
                yield ":\n\n"
                continue
            rows = shown_rows(update.rows, hides_payloads=hides_payloads)
            data = {"html": render(rows), "records": len(rows), "skipped": update.skipped}
            yield f"id: {update.event_id}\ndata: {json.dumps(data)}\n\n"
    except LogbusError as error:
        yield f"event: ended\ndata: {json.dumps(error.message)}\n\n"
