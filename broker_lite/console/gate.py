"""An ASGI middleware that checks every request and adds headers to every response.

The middleware refuses a request whose Host header is not an allowed host name. Otherwise a foreign
web page could send requests to the console on loopback under the page's own host name (DNS
rebinding). A POST must have the console's own Origin header, so that only pages of the console can
send it. Changes also need a token (``sessions``).

Routes get the percent-encoded path, because a group's name may contain %2F, which is no separator.
"""

from __future__ import annotations

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from broker_lite.console.settings import ConsoleSettings

BODY_BYTES_MAX = 2 * 1024 * 1024
"""Maximum bytes of a posted form. Its largest field is the value of a produced record."""

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
"""The Content-Security-Policy, which forbids content of other origins, inline scripts and styles,
and frames."""

HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    # Under the policy no-referrer, browsers would send "Origin: null" with a form, and the console
    # would refuse the form as one of another site.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Gate:
    """Middleware that passes allowed requests on to ``app``, and answers every other request with
    the reason why it is refused."""

    def __init__(self, app: ASGIApp, settings: ConsoleSettings) -> None:
        self._app = app
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        refusal = self._refusal(scope["method"], Headers(scope=scope))
        if refusal is None:
            sent = {**scope, "path": scope["raw_path"].decode("ascii")}
            await self._app(sent, receive, with_headers)
        else:
            status, text = refusal
            await PlainTextResponse(text + "\n", status)(scope, receive, with_headers)

    def _refusal(self, method: str, headers: Headers) -> tuple[int, str] | None:
        """Return the HTTP status and the reason for refusing a request; None if it is allowed."""
        address = headers.get("host", "").lower()
        name = address.rpartition(":")[0] if _has_port(address) else address
        if name not in self._settings.hosts:
            return 421, (
                "The console does not serve this host name. Start it with --allowed-host NAME, or "
                "use http://127.0.0.1"
            )
        if method in ("GET", "HEAD"):
            return None
        if method != "POST":
            return 405, "Only GET, HEAD and POST are served."
        if headers.get("origin", "").lower() != f"{self._settings.scheme}://{address}":
            return 403, "A change must be sent from a page of this console. Open the page again."
        # Refuse chunked bodies: h11 ignores their Content-Length, which limits the body's size.
        if "transfer-encoding" in headers:
            return 411, "A form needs a Content-Length and no Transfer-Encoding."
        length = headers.get("content-length", "")
        if not length.isdigit():
            return 411, "A form needs a Content-Length."
        if int(length) > BODY_BYTES_MAX:
            return 413, f"The form is larger than {BODY_BYTES_MAX} bytes. Use: logbus produce"
        return None


def _has_port(address: str) -> bool:
    host, colon, port = address.rpartition(":")
    return bool(colon) and port.isdigit() and (host.endswith("]") or ":" not in host)
