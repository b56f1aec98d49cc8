"""Build configurations from the keyword options of ``connect``, ``producer`` and ``consumer``.

Each option has two spellings: logbus's name (``batch_bytes``), and Kafka's with underscores, as in
kafka-python (``batch_size``). The error for an unknown name suggests the nearest one."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, TypeVar

from broker_lite.client.client_config import OPTIONS
from broker_lite.client.membership.settings import MemberConfig
from broker_lite.config import ConsumerConfig, ProducerConfig, keys, nearest
from broker_lite.errors import InvalidConfigError

C = TypeVar("C", ProducerConfig, ConsumerConfig, MemberConfig)

CONSUMER_ARGUMENTS = (
    "coordination",
    "group",
    "group_id",
    "on_assign",
    "on_lost",
    "on_revoke",
    "partitions",
    "pattern",
    "streams",
    "zookeeper",
)
"""Keyword parameters of ``Bus.consumer`` and ``create_message_streams``.

The error for an unknown option may suggest them, because a misspelt parameter arrives as an
option."""
_ACKS = {0: "0", 1: "1", -1: "all", "-1": "all"}


def build(kind: type[C], options: Mapping[str, Any], base: Mapping[str, Any]) -> C:
    """Build a configuration of class ``kind`` from a call's ``options``.

    ``base``, the options given to ``connect``, applies where ``options`` has no value. Raises
    InvalidConfigError for an unknown option, two spellings with different values, a wrong type, a
    value out of bounds, or contradicting options."""
    spellings = {name: name for name in keys(kind)}
    spellings.update({row.key.replace(".", "_"): name for name, row in keys(kind).items()})
    defaults = {item.name: item.default for item in dataclasses.fields(kind)}
    values: dict[str, Any] = {
        spellings[option]: value for option, value in base.items() if option in spellings
    }
    given: dict[str, str] = {}
    for option, value in options.items():
        name = spellings.get(option.replace(".", "_"))
        if name is None:
            raise _unknown(option, spellings, kind is not ProducerConfig)
        if name in given and values[name] != value:
            raise InvalidConfigError(
                f"{given[name]!r} and {option!r} are one option with different values; give one"
            )
        given[name] = option
        values[name] = value
    checked = {
        name: _checked(given.get(name, name), name, value, defaults[name])
        for name, value in values.items()
    }
    _settle_idempotence(checked, given)
    answered = base.get("has_answered", False)
    return kind(**checked, security=base.get("security"), has_answered=answered)


def _unknown(option: str, spellings: Mapping[str, str], of_consumer: bool) -> InvalidConfigError:
    known = [*spellings, *(CONSUMER_ARGUMENTS if of_consumer else ())]
    return InvalidConfigError(f"unknown option {option!r}{nearest(option, known)}")


def check_names(options: Mapping[str, Any]) -> None:
    """Raise InvalidConfigError for an option that neither producers nor consumers know."""
    known = set()
    for kind in (ProducerConfig, MemberConfig):
        for name, row in keys(kind).items():
            known |= {name, row.key.replace(".", "_")}
    for option in options:
        if option not in known:
            known |= {key.replace(".", "_") for key in OPTIONS}
            raise InvalidConfigError(f"unknown option {option!r}{nearest(option, sorted(known))}")


def only_of_members(options: Mapping[str, Any]) -> list[str]:
    """Return the names in ``options`` that apply only to group members."""
    everybodys, members = keys(ConsumerConfig), keys(MemberConfig)
    spelt = {
        spelling
        for name, row in members.items()
        if name not in everybodys
        for spelling in (name, row.key.replace(".", "_"))
    }
    return [option for option in options if option.replace(".", "_") in spelt]


def check_pattern(pattern: str) -> str:
    """Return ``pattern``. Raises InvalidConfigError if it is not a regular expression."""
    check_text("pattern", pattern)
    try:
        re.compile(pattern)
    except re.error as error:
        raise InvalidConfigError(
            f"pattern={pattern!r} is not a regular expression: {error}; give one in Python's "
            "syntax, which matches whole topic names"
        ) from None
    return pattern


def check_text(option: str, value: str) -> str:
    """Return ``value``. Raises InvalidConfigError if UTF-8 cannot encode it."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidConfigError(
            f"{option}={value!r} holds half a surrogate pair, which UTF-8 cannot encode: give text "
            "(were these bytes of another encoding?)"
        ) from None
    return value


def _checked(option: str, name: str, value: Any, default: Any) -> Any:
    if name == "acks":
        value = _ACKS.get(value, str(value) if isinstance(value, int) else value)
    if name == "compression" and value is None:
        return "none"
    if isinstance(default, bool):
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.lower() in ("true", "false"):
            return value.lower() == "true"
        raise InvalidConfigError(f"{option}={value!r}: give True or False")
    if isinstance(default, int):
        if isinstance(value, str) and value.strip().lstrip("-").isdecimal():
            return int(value)
        if isinstance(value, float) and value.is_integer():
            return int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise InvalidConfigError(f"{option}={value!r}: give a whole number")
        return value
    if isinstance(value, (list, tuple)) and all(isinstance(each, str) for each in value):
        return ",".join(value)
    if not isinstance(value, str):
        raise InvalidConfigError(f"{option}={value!r}: give text")
    return check_text(option, value)


def _settle_idempotence(values: dict[str, Any], given: Mapping[str, str]) -> None:
    """Turn idempotence off in a producer's ``values`` unless acks is "all", as idempotence needs.

    Raises InvalidConfigError if the caller also asked for idempotence."""
    if values.get("acks", "all") == "all":
        return
    if "idempotence" in given and values["idempotence"]:
        raise InvalidConfigError(
            f"{given['idempotence']}=True needs acks='all', not acks={values['acks']!r}; change one"
        )
    values["idempotence"] = False
