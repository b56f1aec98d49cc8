"""The console's application: routes, pages as HTML and as JSON, logins and errors.

Handlers are plain functions, which Starlette runs in threads, because the client's calls block."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import quote, unquote

from prometheus_client import ProcessCollector
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from broker_lite.bus.blocking import Bus
from broker_lite.console import rendering
from broker_lite.console.changes.change import Change
from broker_lite.console.changes.table import CHANGES, DONE
from broker_lite.console.changing import fields_of, show, submit
from broker_lite.console.commands import SNIPPETS
from broker_lite.console.gate import HEADERS, Gate
from broker_lite.console.page_request import Data, Desk, PageRequest, seen_by
from broker_lite.console.pages.table import PAGES, SECTIONS, SECURED_SECTIONS, Page
from broker_lite.console.sessions import Sessions, TooManyLoginsError, Viewer
from broker_lite.console.settings import ConsoleSettings
from broker_lite.console.streams import file_of, tail_of
from broker_lite.errors import (
    BrokerIdNotRegisteredError,
    BrokerNotAvailableError,
    ClusterAuthorizationError,
    GroupAuthorizationError,
    GroupIdNotFoundError,
    LogbusError,
    NetworkError,
    NoBrokersError,
    PolicyViolationError,
    RequestTimedOutError,
    ResourceNotFoundError,
    SaslAuthenticationError,
    SearchLimitError,
    StorageError,
    TopicAuthorizationError,
    TransactionalIdNotFoundError,
    UnknownTopicOrPartitionError,
)
from broker_lite.observing.kafka_exporter import kafka_samples
from broker_lite.observing.metrics import samples
from broker_lite.observing.sampler import INTERVAL_S, Sampler
from broker_lite.server.exposition import render


class ForbiddenChangeError(PolicyViolationError):
    """The console itself refuses a change, for example because it is read-only, and sends no
    request to the brokers."""


STATUS: tuple[tuple[type[LogbusError], int], ...] = (
    (UnknownTopicOrPartitionError, 404),
    (GroupIdNotFoundError, 404),
    (BrokerIdNotRegisteredError, 404),
    (ResourceNotFoundError, 404),
    (TransactionalIdNotFoundError, 404),
    (TopicAuthorizationError, 403),
    (GroupAuthorizationError, 403),
    (ClusterAuthorizationError, 403),
    (ForbiddenChangeError, 403),
    (SaslAuthenticationError, 401),
    (NoBrokersError, 503),
    (NetworkError, 503),
    (BrokerNotAvailableError, 503),
    (RequestTimedOutError, 504),
    (SearchLimitError, 429),
    (StorageError, 507),
)
"""The HTTP status by error class. Other errors are faults of the request and get status 400."""
FIRST_READING_S = 5.0
"""Maximum seconds that a request waits until the console has read the cluster's state for the first
time."""
STALE_S = 3 * INTERVAL_S
"""Age in seconds from which a page marks the shown state of the cluster as old."""
API = "/api/v1"
"""Prefix of the addresses that return a page's data as JSON."""
REFRESH_HEADER = "x-logbus-refresh"
"""A header that ``console.js`` adds to the automatic refresh of a page. Such a request does not
count as use of the session."""
Handler = Callable[[Request, Viewer], Response]


class Console:
    """One console: the connection to its cluster, the sampler (which reads the cluster's state),
    the users' sessions and the templates."""

    def __init__(self, bus: Bus, sampler: Sampler, settings: ConsoleSettings) -> None:
        self.bus = bus
        self.sampler = sampler
        self.settings = settings
        self.sessions = Sessions(bus, settings)
        self.templates = rendering.environment()
        self._desk = Desk()
        # Keep the collector out of prometheus_client's default registry, which belongs to the whole
        # process.
        self._process = ProcessCollector(registry=None)

    def application(self) -> Starlette:
        """Return the ASGI application."""
        pages = [
            Route(prefix + page.path.rstrip("/") or "/", self._serve(page, is_json=bool(prefix)))
            for page in PAGES
            for prefix in ("", API)
        ]
        changes = [
            Route(change.path, self._change(change), methods=["GET", "POST"]) for change in CHANGES
        ]
        shown = [
            *changes,
            *pages,
            Route("/topics/{topic}", _to_messages),
            Route("/topics/{topic}/export", self._guarded(self._export)),
            Route("/topics/{topic}/tail", self._guarded(self._tail, is_json=True)),
            Route("/login", self._login_form),
            Route("/login", self._login, methods=["POST"]),
            Route("/logout", self._logout, methods=["POST"]),
            Mount("/static", StaticFiles(directory=rendering.STATIC)),
        ]
        return Starlette(
            routes=[
                Route("/healthz", self._healthz),
                Route("/metrics", self._metrics),
                *(shown if self.settings.serves_pages else ()),
            ],
            middleware=[Middleware(Gate, settings=self.settings)],
            exception_handlers={404: self._not_found, 500: _crashed},
        )

    # Methods that serve pages.

    def _guarded(self, make: Handler, *, is_json: bool = False) -> Callable[[Request], Response]:
        """Return an endpoint that calls ``make`` and returns its response.

        The endpoint finds the viewer (the user's session) by the request's cookie, or asks for a
        login. It turns a LogbusError into an error page."""

        def answer(request: Request) -> Response:
            session_id = request.cookies.get(self.sessions.cookie, "")
            made_id = "" if session_id or self.sessions.demands_login else self.sessions.new_id()
            viewer = None
            try:
                renews = REFRESH_HEADER not in request.headers
                viewer = self.sessions.viewer(session_id or made_id, renews=renews)
                if viewer is None:
                    return self._sign_in_first(request, is_json=is_json)
                response = make(request, viewer)
            except LogbusError as error:
                response = self._failed(request, error, viewer, is_json=is_json)
            if made_id:
                self._set_cookie(response, made_id)
            return response

        return answer

    def _serve(self, page: Page, *, is_json: bool) -> Callable[[Request], Response]:
        def make(request: Request, viewer: Viewer) -> Response:
            return self._page(request, page, viewer, is_json=is_json)

        return self._guarded(make, is_json=is_json)

    def _change(self, change: Change) -> Callable[[Request], Awaitable[Response]]:
        """Return the endpoint of a change: GET shows the change's form, and POST submits it."""

        async def answer(request: Request) -> Response:
            body = None if request.method != "POST" else await request.body()

            def make(_: Request, viewer: Viewer) -> Response:
                def render(data: Data, status: int) -> Response:
                    return self.html(
                        request,
                        "change",
                        data,
                        viewer=viewer,
                        section=change.section,
                        status=status,
                    )

                if not viewer.may_change:
                    raise ForbiddenChangeError(
                        "this console is read-only. Use the command line, or start the console "
                        "without --read-only"
                    )
                ask = self.ask(request, viewer)
                if body is None:
                    return show(change, ask, render)
                form = fields_of(body)
                session_id = request.cookies.get(self.sessions.cookie, "")
                if not self.sessions.is_genuine(session_id, form.get("token", "")):
                    raise ForbiddenChangeError(
                        "the form belongs to another session; open the page again"
                    )
                return submit(change, ask, form, render)

            return await run_in_threadpool(self._guarded(make), request)

        return answer

    def _export(self, request: Request, viewer: Viewer) -> Response:
        return file_of(self.ask(request, viewer))

    def _tail(self, request: Request, viewer: Viewer) -> Response:
        event_id = request.headers.get("last-event-id", "") or request.query_params.get("after", "")
        template = self.templates.get_template("record_rows.html")

        def render(rows: list[Data]) -> str:
            return template.render(records=rows, topic_name=names_of(request)["topic"])

        session_id = request.cookies.get(self.sessions.cookie, "")
        is_signed_in = functools.partial(self.sessions.has, session_id)
        return tail_of(self.ask(request, viewer), event_id, render, is_signed_in)

    def ask(self, request: Request, viewer: Viewer) -> PageRequest:
        """Return the input of a page, such as the cluster's newest state, without the topics and
        groups that the page's user may not describe. Raises NoBrokersError if the cluster has not
        been read yet."""
        self.sampler.wait(FIRST_READING_S)
        reading = self.sampler.reading
        if reading is None:
            raise NoBrokersError(self.sampler.failure or "the cluster has not answered yet")
        return PageRequest(
            seen_by(reading, viewer.visible),
            self.sampler,
            viewer,
            self.settings,
            names_of(request),
            request.query_params,
            self._desk,
        )

    def _page(self, request: Request, page: Page, viewer: Viewer, *, is_json: bool) -> Response:
        ask = self.ask(request, viewer)
        data = page.make(ask)
        if is_json:
            return Response(
                rendering.as_json({"at_ms": ask.reading.at_ms, **data}),
                media_type="application/json",
            )
        snippets = SNIPPETS[page.template](ask.path, self.bus.bootstrap_servers, ask.query)
        return self.html(
            request, page.template, data, viewer=viewer, section=page.section, snippets=snippets
        )

    def html(
        self,
        request: Request,
        template: str,
        data: Data,
        *,
        viewer: Viewer | None = None,
        section: str = "",
        status: int = 200,
        snippets: Any = (),
    ) -> Response:
        """Return a page as HTML. The template gets ``data`` and the data of every page, such as the
        navigation."""
        age_s, reading = self.sampler.age_s, self.sampler.reading
        query = f"?{request.url.query}" if request.url.query else ""
        frame = {
            "section": section,
            "sections": SECTIONS + (SECURED_SECTIONS if self.sessions.demands_login else ()),
            "template": template,
            "viewer": viewer,
            "settings": self.settings,
            "demands_login": self.sessions.demands_login,
            "servers": self.bus.bootstrap_servers,
            "age_s": age_s,
            "has_reading": reading is not None,
            "is_stale": age_s > STALE_S,
            "failure": self.sampler.failure,
            "groups_failure": "" if reading is None else reading.groups_failure,
            "snippets": snippets,
            "twin": API + request.url.path.rstrip("/") + query,
            "path": names_of(request),
            "done": DONE.get(request.query_params.get("done", ""), ""),
            "query": request.query_params,
        }
        text = self.templates.get_template(f"{template}.html").render(frame | data)
        return Response(text, status, media_type="text/html")

    def _failed(
        self, request: Request, error: LogbusError, viewer: Viewer | None, *, is_json: bool
    ) -> Response:
        status = next((code for kind, code in STATUS if isinstance(error, kind)), 400)
        said = {"error": error.name, "message": error.message, "status": status}
        return self._say(request, said, viewer, is_json=is_json)

    def _say(
        self, request: Request, said: Data, viewer: Viewer | None, *, is_json: bool
    ) -> Response:
        """Return a response that reports an error, as a page or as JSON. ``said`` has the error's
        name, its message and its HTTP status."""
        status = said["status"]
        if is_json:
            shown = {"error": said["error"], "message": said["message"]}
            return Response(rendering.as_json(shown), status, media_type="application/json")
        return self.html(request, "failed", said, viewer=viewer, status=status)

    async def _not_found(self, request: Request, _: Exception) -> Response:
        message = f"There is no page {request.url.path[:200]}"
        said = {"error": "NOT_FOUND", "message": message, "status": 404}
        is_json = request.url.path.startswith(API) or not self.settings.serves_pages

        def answer() -> Response:
            viewer = None
            if not is_json:
                with contextlib.suppress(LogbusError):
                    viewer = self.sessions.viewer(request.cookies.get(self.sessions.cookie, ""))
            return self._say(request, said, viewer, is_json=is_json)

        return await run_in_threadpool(answer)

    def _healthz(self, _: Request) -> Response:
        """Return the cluster's health as JSON, for monitoring. The HTTP status is 503 if the health
        is critical, or was not read within ``STALE_S``."""
        reading = self.sampler.reading
        state = "unknown" if reading is None or self.sampler.age_s > STALE_S else reading.state
        said: Data = {"state": state}
        if reading is not None and not self.sessions.demands_login:
            said["causes"] = [cause._asdict() for cause in reading.causes]
        is_up = state in ("ok", "warning")
        return Response(
            rendering.as_json(said), 200 if is_up else 503, media_type="application/json"
        )

    def _metrics(self, request: Request) -> Response:
        """Return the metrics of the cluster, for Prometheus.

        If other machines can reach the console, the request needs the HTTP Basic login of a user
        who may describe the cluster, because the metrics name all topics."""
        if not self.settings.is_loopback and (refused := self._scrape_refusal(request)) is not None:
            return refused
        rows = samples(self.sampler, by_partition=self.settings.by_partition)
        reading = self.sampler.reading
        if self.settings.compat and reading is not None:
            rows += kafka_samples(reading)
        body, content_type = render(rows, self._process, request.headers.get("accept", ""))
        return Response(body, media_type=content_type)

    # Methods that log users in and out.

    def _scrape_refusal(self, request: Request) -> Response | None:
        """Log in with the user and password in the HTTP Basic header of a request for metrics.
        Return None if the user may read the metrics, else the response that refuses the request."""
        try:
            viewer = self.sessions.scraper(request.headers.get("authorization", ""))
        except SaslAuthenticationError:
            text = "/metrics needs the user and password of HTTP Basic\n"
            return PlainTextResponse(text, 401, {"WWW-Authenticate": 'Basic realm="logbus"'})
        except LogbusError as error:
            status = 429 if isinstance(error, TooManyLoginsError) else 503
            return PlainTextResponse(f"{error.message}\n", status)
        if viewer.visible is None or viewer.visible.describes_cluster:
            return None
        return PlainTextResponse("/metrics needs the permission to describe the cluster\n", 403)

    def _sign_in_first(self, request: Request, *, is_json: bool) -> Response:
        if is_json:
            error = SaslAuthenticationError("sign in first")
            return self._failed(request, error, None, is_json=True)
        target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        return RedirectResponse(f"/login?next={quote(target)}", 303)

    def _login_form(self, request: Request) -> Response:
        if not self.sessions.demands_login:
            return RedirectResponse("/", 303)
        return self.html(
            request, "login", {"refusal": "", "user": "", "next": _local(request.query_params)}
        )

    async def _login(self, request: Request) -> Response:
        return await run_in_threadpool(self._sign_in, request, await request.body())

    def _sign_in(self, request: Request, body: bytes) -> Response:
        try:
            form = fields_of(body)
        except LogbusError as error:
            return self._failed(request, error, None, is_json=False)
        target, user = _local(form), form.get("user", "")
        try:
            session_id = self.sessions.sign_in(user, form.get("password", ""))
        except LogbusError as error:
            is_wrong = isinstance(error, SaslAuthenticationError)
            text = "The user or the password is wrong." if is_wrong else error.message
            status = 401 if is_wrong else 429 if isinstance(error, TooManyLoginsError) else 503
            shown = {"refusal": text, "user": user, "next": target}
            return self.html(request, "login", shown, status=status)
        response = RedirectResponse(target, 303)
        self._set_cookie(response, session_id)
        return response

    async def _logout(self, request: Request) -> Response:
        session_id = request.cookies.get(self.sessions.cookie, "")
        await run_in_threadpool(self.sessions.sign_out, session_id)
        response = RedirectResponse("/login", 303)
        self._set_cookie(response, "", max_age=0)
        return response

    def _set_cookie(
        self, response: Response, session_id: str, *, max_age: int | None = None
    ) -> None:
        """Set the session cookie. ``max_age`` is in seconds: 0 deletes the cookie, and with None
        the browser deletes it when it closes."""
        response.set_cookie(
            self.sessions.cookie,
            session_id,
            max_age=max_age,
            httponly=True,
            samesite="strict",
            secure=self.settings.certificate is not None,
        )


def names_of(request: Request) -> dict[str, str]:
    """Return the names in the URL's path, such as the topic. Remove their percent-encoding, which
    the middleware ``Gate`` leaves there."""
    return {key: unquote(value) for key, value in request.path_params.items()}


def _local(fields: Any) -> str:
    """Return the page to open after a login: the field ``next`` of the form if it is a path of this
    console, else the first page."""
    target = str(fields.get("next", "/"))
    is_local = target.startswith("/") and target[1:2] not in ("/", "\\")
    return target if is_local and target.isprintable() else "/"


def _crashed(_: Request, error: Exception) -> Response:
    """Answer a request that raised an unexpected exception. The log gets its stack trace."""
    text = f"The console failed: {type(error).__name__}. Its log has the stack trace.\n"
    return PlainTextResponse(text, 500, headers=HEADERS)


def _to_messages(request: Request) -> Response:
    return RedirectResponse(f"{request.url.path}/messages", 307)
