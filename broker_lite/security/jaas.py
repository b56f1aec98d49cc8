"""Parse Kafka's ``sasl.jaas.config``, a Java login configuration, without executing it.

Example: ``org.apache.kafka.common.security.scram.ScramLoginModule required username="a"
password="b";``

The parser accepts only Kafka's three modules for passwords and tokens, because other modules can
run code (CVE-2023-25194). It accepts Spark's shaded class names too (``kafkashaded.``). Error
messages never contain the values of options.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from broker_lite.errors import InvalidConfigError

TEXT_LENGTH_MAX = 16_384
_PACKAGE = "org.apache.kafka.common.security."
_MODULES = {
    "scram.ScramLoginModule": "SCRAM",
    "plain.PlainLoginModule": "PLAIN",
    "oauthbearer.OAuthBearerLoginModule": "OAUTHBEARER",
}
_FLAGS = ("required", "requisite", "sufficient", "optional")
_TOKEN = re.compile(r'\s*(?:"((?:\\.|[^"\\])*)"|([^\s";=]+)|([=;]))')
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}
_CURE = (
    'write it as: org.apache.kafka.common.security.scram.ScramLoginModule required username="..." '
    'password="...";'
)


class JaasLogin(NamedTuple):
    """The login of a ``sasl.jaas.config``: the family of mechanisms (SCRAM, PLAIN, OAUTHBEARER) and
    the login module's options."""

    family: str
    options: dict[str, str]

    def __repr__(self) -> str:
        return f"JaasLogin({self.family}, {sorted(self.options)})"


def parse_jaas(text: str) -> JaasLogin:
    """Parse ``sasl.jaas.config``. Raises InvalidConfigError, whose message contains no option's
    value."""
    if len(text) > TEXT_LENGTH_MAX:
        raise InvalidConfigError(
            f"sasl.jaas.config has {len(text)} characters, more than {TEXT_LENGTH_MAX}; {_CURE}"
        )
    tokens = _tokens(text)
    if len(tokens) < 3 or tokens[-1] != ";" or tokens.count(";") != 1:
        raise InvalidConfigError(f"sasl.jaas.config must be one login that ends in ';'; {_CURE}")
    module, flag, *rest = tokens[:-1]
    name = module.removeprefix("kafkashaded.")
    family = _MODULES.get(name.removeprefix(_PACKAGE)) if name.startswith(_PACKAGE) else None
    if family is None:
        raise InvalidConfigError(
            f"sasl.jaas.config names the login module {module[:120]!r}; only ScramLoginModule, "
            "PlainLoginModule and OAuthBearerLoginModule of Kafka are supported"
        )
    if flag.lower() not in _FLAGS:
        raise InvalidConfigError(f"sasl.jaas.config lacks 'required' after the module; {_CURE}")
    return JaasLogin(family, _options(rest))


class _Text(str):
    """A quoted token. The parser takes it as text, even a quoted ``=`` or ``;``."""

    __slots__ = ()


def _tokens(text: str) -> list[str]:
    tokens: list[str] = []
    at = 0
    while at < len(text.rstrip()):
        match = _TOKEN.match(text, at)
        if match is None:
            raise InvalidConfigError(
                f"sasl.jaas.config cannot be parsed from character {at} on; {_CURE}"
            )
        quoted, plain, sign = match.groups()
        tokens.append(_unescaped(quoted) if quoted is not None else plain or sign)
        at = match.end()
    return tokens


def _unescaped(text: str) -> str:
    return _Text(re.sub(r"\\(.)", lambda each: _ESCAPES.get(each[1], each[1]), text))


def _options(tokens: list[str]) -> dict[str, str]:
    options: dict[str, str] = {}
    if len(tokens) % 3:
        raise InvalidConfigError(f"sasl.jaas.config has an option without a value; {_CURE}")
    for name, sign, value in zip(*[iter(tokens)] * 3, strict=True):
        is_pair = sign == "=" and not isinstance(sign, _Text)
        if not is_pair or isinstance(name, _Text) or name in options:
            raise InvalidConfigError(
                f"sasl.jaas.config: option {name[:40]!r} is repeated or not a pair name=value; "
                f"{_CURE}"
            )
        if "class" in name.lower() or "callback" in name.lower():
            raise InvalidConfigError(
                f"sasl.jaas.config: option {name[:40]!r} names Java code, which logbus never runs"
            )
        options[name] = str(value)
    return options
