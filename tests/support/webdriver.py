"""Control Chromium for tests through chromedriver and the W3C WebDriver protocol.

The profile is new and empty, and the browser calls no host by itself. ``require_browser`` skips a
test if Chromium or chromedriver is missing.
"""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from support.patience import until

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
"""The key under which the protocol returns the id of an element."""
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
)
START_S, ANSWER_S = 30.0, 60.0


def require_browser() -> tuple[str, str]:
    """Return the paths of Chromium and chromedriver, or skip the test."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if browser is None or driver is None:
        pytest.skip("no browser: apt-get install chromium chromium-driver")
    return browser, driver


def driver_port() -> int:
    """Return a free port below the ephemeral ports. On an ephemeral port chromedriver fails to
    listen if a closed connection still holds the port."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as free, contextlib.suppress(OSError):
            free.bind(("127.0.0.1", port))
            return port


class Browser:
    """A browser with one window."""

    def __init__(self, profile: Path) -> None:
        browser, driver = require_browser()
        port = driver_port()
        self._url = f"http://127.0.0.1:{port}"
        self._driver = subprocess.Popen(
            [driver, f"--port={port}", "--allowed-ips=127.0.0.1"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            self._await_driver()
            capabilities = {
                "browserName": "chrome",
                "goog:chromeOptions": {
                    "binary": browser,
                    "args": [*FLAGS, f"--user-data-dir={profile}"],
                },
                "goog:loggingPrefs": {"browser": "ALL"},
                "acceptInsecureCerts": True,
            }
            started = self._send(
                "POST", "/session", {"capabilities": {"alwaysMatch": capabilities}}
            )
        except BaseException:
            self._end_driver()
            raise
        self._url += f"/session/{started['sessionId']}"

    def close(self) -> None:
        try:
            self._send("DELETE", "")
        finally:
            self._end_driver()

    def _end_driver(self) -> None:
        self._driver.terminate()
        self._driver.wait(START_S)

    def _await_driver(self) -> None:
        until_s = time.monotonic() + START_S
        while True:
            try:
                if self._send("GET", "/status")["ready"]:
                    return
            except (urllib.error.URLError, ConnectionError):
                if time.monotonic() > until_s or self._driver.poll() is not None:
                    raise
            time.sleep(0.05)

    def _send(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        data = None if method != "POST" else json.dumps(body or {}).encode()
        request = urllib.request.Request(self._url + path, data, method=method)
        request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{method} {path}: {json.load(error)['value']}") from None

    def command(self, name: str, **parameters: Any) -> Any:
        """Run a command of Chrome's DevTools protocol."""
        return self._send("POST", "/goog/cdp/execute", {"cmd": name, "params": parameters})

    def open(self, url: str) -> None:
        """Load a page; wait for its load event."""
        self._send("POST", "/url", {"url": url})

    @property
    def url(self) -> str:
        return str(self._send("GET", "/url"))

    @property
    def title(self) -> str:
        return str(self._send("GET", "/title"))

    @property
    def status(self) -> int:
        """The HTTP status of the page."""
        entry = "performance.getEntriesByType('navigation')[0]"
        return int(self.run(f"return {entry}.responseStatus"))

    def run(self, script: str, *arguments: Any) -> Any:
        """Run a script outside the page's Content-Security-Policy; return its result."""
        return self._send("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def text(self, selector: str) -> str:
        """Return the visible text of the first element that the CSS selector matches."""
        return str(self._send("GET", f"/element/{self._element(selector)}/text"))

    def count(self, selector: str) -> int:
        using = {"using": "css selector", "value": selector}
        return len(self._send("POST", "/elements", using))

    def click(self, selector: str) -> None:
        self._send("POST", f"/element/{self._element(selector)}/click")

    def type(self, selector: str, text: str) -> None:
        """Replace the text of a field."""
        element = self._element(selector)
        self._send("POST", f"/element/{element}/clear")
        self._send("POST", f"/element/{element}/value", {"text": text})

    def press(self, keys: str) -> None:
        """Type keys into the focused element."""
        focused = self._send("GET", "/element/active")[ELEMENT]
        self._send("POST", f"/element/{focused}/value", {"text": keys})

    def _element(self, selector: str) -> str:
        using = {"using": "css selector", "value": selector}
        return str(self._send("POST", "/element", using)[ELEMENT])

    def follow(self, selector: str, address: str) -> None:
        """Click the selected element; wait for the page whose URL ends with ``address``."""
        self.click(selector)
        until(lambda: self.url.endswith(address), what=lambda: f"{address}, not {self.url}")
        until(lambda: self.run("return document.readyState") == "complete", what="the page")

    def complaints(self) -> list[str]:
        """Return the script errors, and violations of the page's Content-Security-Policy, since
        the last call."""
        rows = self._send("POST", "/se/log", {"type": "browser"})
        return [row["message"] for row in rows if row["level"] in ("SEVERE", "WARNING")]

    def show(self, *, dark: bool = False, width: int = 1280, height: int = 800) -> None:
        """Set the preferred colour scheme and the size of the window, also of the open page."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        # Without transitions, the open page has its new colours at once.
        still = {"name": "prefers-reduced-motion", "value": "reduce"}
        self.command("Emulation.setEmulatedMedia", features=[scheme, still])
        self.command(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )

    @contextlib.contextmanager
    def other_tab(self) -> Iterator[None]:
        """Show another tab within the ``with`` block, so that the page is hidden."""
        other = self.command("Target.createTarget", url="about:blank")["targetId"]
        try:
            yield
        finally:
            self.command("Page.bringToFront")
            self.command("Target.closeTarget", targetId=other)

    def allow_scripts(self, allowed: bool) -> None:
        """Enable or disable scripts, from the next page on."""
        self.command("Emulation.setScriptExecutionDisabled", value=not allowed)
