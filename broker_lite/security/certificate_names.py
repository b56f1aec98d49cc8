"""Map client certificates to principals by Kafka's ``ssl.principal.mapping.rules``.

A rule is ``DEFAULT`` (the whole name) or ``RULE:pattern/replacement/`` with an optional ``L`` or
``U`` for lower or upper case. The first rule that matches applies. A pattern must match the whole
RFC 2253 name of the certificate. ``$1`` in a replacement stands for the pattern's first group.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from broker_lite.errors import InvalidConfigError, SaslAuthenticationError

NAME_LENGTH_MAX = 1024
_PART = r"(?:\\.|[^\\/])*"
_RULE = re.compile(rf"\s*(?:(DEFAULT)|RULE:({_PART})/({_PART})/([LU]?))\s*(?:,|$)")
_GROUP = re.compile(r"\$(\d)")


class MappingRule(NamedTuple):
    """One rule of ``ssl.principal.mapping.rules``.

    If ``pattern`` is None, the rule is ``DEFAULT``. ``case`` is ``L`` for a user name in lower
    case, ``U`` for upper case, or empty."""

    pattern: re.Pattern[str] | None
    replacement: str = ""
    case: str = ""

    def apply(self, name: str) -> str | None:
        """Return the user name that the rule makes of a certificate's name; None if the name does
        not match."""
        if self.pattern is None:
            return name
        match = self.pattern.fullmatch(name)
        if match is None:
            return None
        user = _GROUP.sub(lambda group: match[int(group[1])] or "", self.replacement)
        return {"L": user.lower(), "U": user.upper()}.get(self.case, user)


def parse_rules(text: str) -> tuple[MappingRule, ...]:
    """Parse ``ssl.principal.mapping.rules``. Raises InvalidConfigError, which names the wrong
    rule."""
    rules, at = [], 0
    while at < len(text):
        match = _RULE.match(text, at)
        if match is None:
            raise InvalidConfigError(
                f"ssl.principal.mapping.rules: {text[at : at + 80]!r} is not a rule; "
                "write DEFAULT or RULE:pattern/replacement/[LU]"
            )
        default, pattern, replacement, case = match.groups()
        if default:
            rules.append(MappingRule(None))
        else:
            rules.append(_compiled(pattern, replacement.replace(r"\/", "/"), case))
        at = match.end()
    return tuple(rules) or (MappingRule(None),)


def _compiled(pattern: str, replacement: str, case: str) -> MappingRule:
    try:
        compiled = re.compile(pattern.replace(r"\/", "/"))
    except re.error as error:
        raise InvalidConfigError(
            f"ssl.principal.mapping.rules: pattern {pattern!r} is invalid: {error}"
        ) from None
    groups = [int(number) for number in _GROUP.findall(replacement)]
    if any(number > compiled.groups for number in groups):
        raise InvalidConfigError(
            f"ssl.principal.mapping.rules: replacement {replacement!r} names a group that pattern "
            f"{pattern!r} does not have"
        )
    return MappingRule(compiled, replacement, case)


def principal_of(name: str, rules: tuple[MappingRule, ...]) -> str:
    """Return the principal (``User:...``) of a certificate's RFC 2253 name. Raises
    SaslAuthenticationError if no rule matches, or the name is empty, too long or unprintable."""
    if not name or len(name) > NAME_LENGTH_MAX or not name.isprintable():
        raise SaslAuthenticationError(
            f"the certificate's name {name[:80]!r} is empty, longer than {NAME_LENGTH_MAX} "
            "characters, or has control characters"
        )
    for rule in rules:
        user = rule.apply(name)
        if user:
            return f"User:{user}"
    raise SaslAuthenticationError(
        f"no rule of ssl.principal.mapping.rules matches the certificate's name {name!r}"
    )
