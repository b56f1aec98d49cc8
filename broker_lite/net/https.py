"""Send an https request, with limits of the time and the size of the answer. Redirects are not
followed."""

from __future__ import annotations

import http.client
import ssl
import time
from collections.abc import Mapping
from urllib.parse import urlsplit

from broker_lite.errors import NetworkError

TIMEOUT_S = 5.0


def fetch_https(
    url: str, bytes_max: int, *, form: str | None = None, headers: Mapping[str, str] | None = None
) -> bytes:
    """Return the body of the answer to a GET request, or to a POST request with ``form``.

    The body has at most ``bytes_max`` bytes. The function blocks and trusts the operating system's
    CAs, or those of the variable SSL_CERT_FILE. Raises NetworkError for any other status than 200
    and for every failure. The error's message names the URL, never the form or the body."""
    parts = urlsplit(url)
    deadline = time.monotonic() + TIMEOUT_S
    connection = http.client.HTTPSConnection(
        parts.hostname or "", parts.port, timeout=TIMEOUT_S, context=ssl.create_default_context()
    )
    kind = {"Content-Type": "application/x-www-form-urlencoded"} if form is not None else {}
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    try:
        connection.request(
            "GET" if form is None else "POST",
            target,
            form,
            {"Accept": "application/json", **kind, **(headers or {})},
        )
        answer = connection.getresponse()
        if answer.status != 200:
            raise NetworkError(f"{url} answered with status {answer.status}, not 200")
        body = bytearray()
        while part := answer.read1(1 << 14):
            body += part
            if len(body) > bytes_max:
                raise NetworkError(f"the answer of {url} has more than {bytes_max} bytes")
            if time.monotonic() > deadline:
                raise NetworkError(f"{url} needs more than {TIMEOUT_S:.0f} s for its answer")
    except (OSError, UnicodeError, http.client.HTTPException) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise NetworkError(f"{url}: {reason}") from None
    finally:
        connection.close()
    return bytes(body)
