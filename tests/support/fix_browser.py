"""Fixtures of a real browser."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.webdriver import Browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    opened = Browser(tmp_path_factory.mktemp("browser"))
    yield opened
    opened.close()


@pytest.fixture
def page(browser: Browser) -> Browser:
    """A browser without cookies, with scripts, the light theme and a wide window."""
    browser.command("Network.clearBrowserCookies")
    browser.allow_scripts(True)
    browser.show()
    browser.complaints()
    return browser
