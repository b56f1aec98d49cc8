"""A running ``logbus console`` for tests, and a client of its HTTP port."""

from __future__ import annotations

import http.client
import json
import re
import select
import signal
import ssl
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

START_S, ANSWER_S = 30.0, 60.0


class Answer(NamedTuple):
    """A response. Header names are in lower case; of a repeated header, the last value is kept."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode("utf-8")

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class RunningConsole:
    """One console process. After the console has set ``cookie``, each request sends it."""

    _tls: ssl.SSLContext | None = None

    def __init__(
        self, servers: str, *options: str, before: Sequence[str] = (), trusted: str = ""
    ) -> None:
        """Start the console.

        ``before`` precedes the console's command line, for example prlimit. ``trusted`` is
        the path of the CA of a console with TLS.
        """
        if trusted:
            self._tls = ssl.create_default_context(cafile=trusted)
        command = [*before, sys.executable, "-P", "-m", "broker_lite", "console", "--port", "0"]
        # Sample often, because most tests wait for the console's next sample.
        command += ["--interval", "0.5"]
        # Without a buffer, select sees every byte that is not read yet.
        self._process = subprocess.Popen(
            [*command, "-b", servers, *options], stderr=subprocess.PIPE, bufsize=0
        )
        self.cookie = ""
        self.url = self._address()

    def _address(self) -> str:
        line = self._line()
        found = re.search(r"https?://\S+/", line)
        assert found, line
        return found[0]

    def _line(self) -> str:
        """Return the next line that the console prints."""
        assert self._process.stderr is not None
        assert select.select([self._process.stderr], [], [], START_S)[0], "the console is silent"
        line = self._process.stderr.readline().decode()
        assert line, "the console has ended"
        return line

    def logged(self, part: str) -> str:
        """Return the next line of the console's log that contains ``part``. Skip other lines."""
        while part not in (line := self._line()):
            pass
        return line

    @property
    def memory_mb(self) -> float:
        """Return the resident memory of the process in MB."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) * 1024 / 1e6

    @property
    def cookie_name(self) -> str:
        """Return the name of the console's session cookie, which contains the port."""
        return f"logbus_console_{urlsplit(self.url).port}"

    @property
    def address(self) -> str:
        """Return the console's host and port."""
        return urlsplit(self.url).netloc

    def get(self, path: str, **headers: str) -> Answer:
        return self.send("GET", path, headers)

    def json(self, path: str) -> Any:
        """Return the JSON of a page from the console's API."""
        answer = self.get(f"/api/v1{path}")
        assert answer.status == 200, answer.text
        return answer.json

    def post(self, path: str, fields: Mapping[str, str], **headers: str) -> Answer:
        """Send a form as a page of the console does."""
        given = {
            "Origin": self.url.rstrip("/"),
            "Content-Type": "application/x-www-form-urlencoded",
            **headers,
        }
        return self.send("POST", path, given, urlencode(fields).encode())

    def send(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes | None = None
    ) -> Answer:
        connection = self._connection()
        given = {"Cookie": self.cookie, **headers} if self.cookie else dict(headers)
        try:
            connection.request(method, path, body, given)
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            if "set-cookie" in found:
                self.cookie = found["set-cookie"].partition(";")[0]
            return Answer(answer.status, found, answer.read())
        finally:
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        if self._tls is None:
            return http.client.HTTPConnection(self.address, timeout=ANSWER_S)
        return http.client.HTTPSConnection(self.address, timeout=ANSWER_S, context=self._tls)

    def close(self) -> int:
        """Stop the console as Ctrl-C does; return its exit code."""
        self._process.send_signal(signal.SIGINT)
        code = self._process.wait(START_S)
        assert self._process.stderr is not None
        self._process.stderr.close()
        return code


def check_json_of_page(console: RunningConsole, path: str) -> None:
    """Check that the console serves a page, and links to the same data as JSON. The path of the
    overview is empty."""
    page, twin = console.get(path or "/"), console.get(f"/api/v1{path}")
    assert (page.status, twin.status) == (200, 200)
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert twin.headers["content-type"] == "application/json"
    assert f'href="/api/v1{path}"' in page.text and twin.json["at_ms"] > 0


def token(console: RunningConsole, path: str) -> str:
    """Return the CSRF token of the form on a page."""
    page = console.get(path)
    assert page.status == 200, page.text
    found = re.search(r'name="token" value="([0-9a-f]{64})"', page.text)
    assert found, page.text
    return found[1]


def change(console: RunningConsole, path: str, **fields: str) -> Answer:
    """Send the form on a page. ``typed`` is the typed confirmation."""
    return console.post(path, {"token": token(console, path), **fields})
