"""A client's security settings: from options, or from the file in ``LOGBUS_CLIENT_CONFIG``.

The file has ``key=value`` lines with Kafka's or librdkafka's names. Keys that do not concern
security are ignored, so a ``client.properties`` of Kafka's tools or a file for ``kcat -F`` works
unchanged. A misspelt security key is an error. So is a security key that logbus cannot honour
(``REFUSED``)."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from broker_lite.config.client_security import (
    CLIENT_ID,
    CLIENT_SECRET,
    KEYS,
    MECHANISM,
    MECHANISMS,
    NO_SECURITY,
    PASSWORD,
    SECRET_KEYS,
    TOKEN_SCOPE,
    TOKEN_URL,
    USERNAME,
    ClientSecurity,
    check_security_names,
    client_security,
)
from broker_lite.errors import InvalidConfigError
from broker_lite.model import OAUTHBEARER
from broker_lite.security.jaas import parse_jaas

VARIABLE = "LOGBUS_CLIENT_CONFIG"
"""The environment variable that names a client's file of security settings."""
ALLOWED_URLS = "LOGBUS_OAUTH_ALLOWED_URLS"
"""The environment variable with the OAuth token URLs that this process may use, separated by
commas.

It is no client option: a user who may set the token URL in the options could also allow it, and
make this process connect to any address (CVE-2025-27817)."""
JAAS = "sasl.jaas.config"
"""Kafka's option that holds user name and password in one text."""
FILE = "client.config"
"""The client option with the path of a file of security settings."""
OPTIONS = frozenset({*KEYS, JAAS, FILE})
"""The options that ``security_of_options`` reads."""


_chosen: ClientSecurity | None = None
"""The settings of the open ``with chosen_security(…)`` block, or None."""


@contextlib.contextmanager
def chosen_security(security: ClientSecurity) -> Iterator[None]:
    """Make ``security`` the default of all clients in this process within a ``with`` block.

    It takes precedence over the file in LOGBUS_CLIENT_CONFIG. A client with settings of its own
    ignores both. The command line calls this function."""
    global _chosen
    before, _chosen = _chosen, security
    try:
        yield
    finally:
        _chosen = before


def is_chosen() -> bool:
    """Return whether a ``with chosen_security(…)`` block is open in this process."""
    return _chosen is not None


def security_of_environment() -> ClientSecurity:
    """Return the security settings of an open ``chosen_security`` block, else of the file in
    LOGBUS_CLIENT_CONFIG, else NO_SECURITY.

    Raises InvalidConfigError for a wrong setting in the file."""
    if _chosen is not None:
        return _chosen
    path = os.environ.get(VARIABLE)
    return security_of_file(Path(path)) if path else NO_SECURITY


def security_of_options(options: Mapping[str, str]) -> ClientSecurity | None:
    """Return the security settings among ``options``, or None if there are none.

    The settings of the file that the option ``client.config`` names are added; ``options`` override
    them. Raises InvalidConfigError for a wrong value."""
    given = {key: value for key, value in options.items() if key in OPTIONS}
    if not given:
        return None
    path = given.pop(FILE, "")
    if not path:
        return security_of(given)
    options = _options_of_file(Path(path))
    if not given:
        return _security_in(Path(path), options)
    if JAAS in given:
        options = {key: options[key] for key in options if key not in (USERNAME, PASSWORD)}
    return security_of({**options, **given})


def take_security(options: Mapping[str, Any]) -> tuple[ClientSecurity | None, dict[str, Any]]:
    """Split keyword options into security settings (None without any) and the others.

    Keywords have underscores in place of dots: ``sasl_username``. Raises InvalidConfigError for a
    wrong security setting."""
    rest: dict[str, Any] = {}
    security_options: dict[str, str] = {}
    for name, value in options.items():
        key = name.replace("_", ".")
        if key not in OPTIONS:
            rest[name] = value
        elif isinstance(value, str | os.PathLike):
            security_options[key] = os.fspath(value)
        else:
            raise InvalidConfigError(f"{name}: give text, not {type(value).__name__}")
    return security_of_options(security_options), rest


def security_of_file(path: Path) -> ClientSecurity:
    """Return the security settings of a file. Raises InvalidConfigError with the file's name."""
    return _security_in(path, _options_of_file(path))


def servers_of_file(path: Path) -> str:
    """Return ``bootstrap.servers`` of a file, or "". Raises InvalidConfigError with the file's
    name."""
    return _options_of_file(path).get("bootstrap.servers", "")


def _options_of_file(path: Path) -> dict[str, str]:
    try:
        text = path.read_text("utf-8")
        mode = path.stat().st_mode
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise InvalidConfigError(
            f"client configuration {path} cannot be read: {reason}. Correct its path (-F, "
            "client_config or LOGBUS_CLIENT_CONFIG), or let this user read it"
        ) from None
    options: dict[str, str] = {}
    for line in text.splitlines():
        key, equals, value = line.strip().partition("=")
        if equals and not key.startswith("#"):
            options[key.strip()] = value.strip()
    try:
        check_security_names(options, OPTIONS)
    except InvalidConfigError as error:
        raise InvalidConfigError(f"client configuration {path}: {error.message}") from None
    if (JAAS in options or SECRET_KEYS & options.keys()) and mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise InvalidConfigError(
            f"client configuration {path} holds a password, and other users may read it; run: "
            f"chmod 600 {path}"
        )
    return options


def _security_in(path: Path, options: Mapping[str, str]) -> ClientSecurity:
    try:
        return security_of(options)
    except InvalidConfigError as error:
        raise InvalidConfigError(f"client configuration {path}: {error.message}") from None


def security_of(options: Mapping[str, str]) -> ClientSecurity:
    """Return the security settings among ``options``. Raises InvalidConfigError for a wrong value.

    User name and password may also come from ``sasl.jaas.config``."""
    security = client_security(_with_jaas(options))
    if security.token_url:
        allowed = [each.strip() for each in os.environ.get(ALLOWED_URLS, "").split(",")]
        if security.token_url not in allowed:
            raise InvalidConfigError(
                f"{TOKEN_URL}={security.token_url} is not allowed in this process; set the "
                f"environment variable {ALLOWED_URLS}={security.token_url}"
            )
    return security


def _with_jaas(options: Mapping[str, str]) -> Mapping[str, str]:
    """Return ``options``, plus the login (of a user or an OAuth client) that ``sasl.jaas.config``
    holds."""
    if JAAS not in options:
        return options
    login = parse_jaas(options[JAAS])
    mechanism = options.get(MECHANISM) or options.get(MECHANISMS) or ""
    if not mechanism.upper().startswith(login.family):
        raise InvalidConfigError(
            f"{JAAS} is a login with {login.family}, but {MECHANISM}={mechanism[:60]!r}; change "
            "one of them"
        )
    if login.family != OAUTHBEARER:
        named = (("username", USERNAME), ("password", PASSWORD))
        return {**options, **{key: login.options.get(name, "") for name, key in named}}
    # The keys of ``names`` are the options in Kafka's JAAS text. The settings sasl.oauthbearer.*
    # have the client id or secret that the text lacks.
    names = {"clientId": CLIENT_ID, "clientSecret": CLIENT_SECRET, "scope": TOKEN_SCOPE}
    login_options = {
        key: login.options[name] for name, key in names.items() if login.options.get(name)
    }
    return {**options, **login_options}
