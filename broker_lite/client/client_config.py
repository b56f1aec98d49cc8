"""The security settings that a client reads from a file: ``LOGBUS_CLIENT_CONFIG`` names it.

The file has ``key=value`` lines in Kafka's or librdkafka's names; other keys are ignored, so a
``client.properties`` of Kafka's tools or a file of ``kcat -F`` can be used as it is.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from broker_lite.config.client_security import (
    MECHANISM,
    MECHANISMS,
    NO_SECURITY,
    PASSWORD,
    USERNAME,
    ClientSecurity,
    client_security,
)
from broker_lite.errors import InvalidConfigError
from broker_lite.security.jaas import parse_jaas

VARIABLE = "LOGBUS_CLIENT_CONFIG"
JAAS = "sasl.jaas.config"


def security_of_environment() -> ClientSecurity:
    """Return the security settings of the file that LOGBUS_CLIENT_CONFIG names; without the
    variable, none."""
    path = os.environ.get(VARIABLE)
    return security_of_file(Path(path)) if path else NO_SECURITY


def security_of_file(path: Path) -> ClientSecurity:
    """Return the security settings of a file. Raises InvalidConfigError that names the file."""
    try:
        text = path.read_text("utf-8")
        mode = path.stat().st_mode
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise InvalidConfigError(f"client configuration {path}: {reason}") from None
    options: dict[str, str] = {}
    for line in text.splitlines():
        key, equals, value = line.strip().partition("=")
        if equals and not key.startswith("#"):
            options[key.strip()] = value.strip()
    if (PASSWORD in options or JAAS in options) and mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise InvalidConfigError(
            f"client configuration {path} holds a password, and other users may read it; run: "
            f"chmod 600 {path}"
        )
    try:
        return security_of(options)
    except InvalidConfigError as error:
        raise InvalidConfigError(f"client configuration {path}: {error.message}") from None


def security_of(options: Mapping[str, str]) -> ClientSecurity:
    """Return the security settings among ``options``, with user and password from
    ``sasl.jaas.config`` if that is given."""
    if JAAS not in options:
        return client_security(options)
    login = parse_jaas(options[JAAS])
    mechanism = options.get(MECHANISM) or options.get(MECHANISMS) or ""
    if not mechanism.upper().startswith(login.family):
        raise InvalidConfigError(
            f"{JAAS} is a login with {login.family}, but {MECHANISM}={mechanism[:60]!r}; make them "
            "agree"
        )
    found = {USERNAME: login.options.get("username", "")}
    found[PASSWORD] = login.options.get("password", "")
    return client_security({**options, **found})
