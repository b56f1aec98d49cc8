"""The reference of settings: keys and bounds from ``config/``, effects from ``conf/*.conf``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from broker_lite.client.membership.settings import MemberConfig
from broker_lite.config import BrokerConfig, ConsumerConfig, ProducerConfig, TopicConfig, keys
from broker_lite.config.setting import Key

_SETTING = re.compile(r"#([a-z0-9.]+)=(.*)")
_HEADING = re.compile(r"# -+ (.*?) -+|#\[(\w+)\]")
_KINDS: dict[str, tuple[Any, ...]] = {
    "broker.conf": (BrokerConfig,),
    "topic.conf": (TopicConfig,),
    "client.conf": (ProducerConfig, ConsumerConfig, MemberConfig),
}


class Row(NamedTuple):
    """A setting of a ``conf`` file: its section, key, default and explanation."""

    section: str
    key: str
    default: str
    text: str


def page(conf: Path, title: str, introduction: str) -> str:
    """Return the reference of the settings in one ``conf`` file. Sections keep the file's order."""
    rules = {row.key: row for kind in _KINDS[conf.name] for row in keys(kind).values()}
    parts = [f"# {title}\n\n{introduction}\n"]
    section = ""
    for row in rows(conf.read_text("utf-8")):
        if row.section != section:
            section = row.section
            parts.append(f"\n## {section}\n")
        parts.append(_setting(row, rules.get(row.key), conf.name == "client.conf"))
    return "\n".join(parts)


def rows(text: str) -> Iterator[Row]:
    """Yield the settings of a ``conf`` file with the comment above each."""
    section, paragraph = "", list[str]()
    for line in text.splitlines():
        if found := _HEADING.fullmatch(line):
            section, paragraph = (found[1] or found[2].capitalize()).split(" (conf/")[0], []
        elif found := _SETTING.fullmatch(line):
            yield Row(section, found[1], found[2], " ".join(paragraph))
            paragraph = []
        elif line.startswith("# "):
            paragraph.append(line[2:])
        elif not line:
            paragraph = []


def _setting(row: Row, rule: Key | None, by_section: bool) -> str:
    anchor = f"{row.section.lower()}-{row.key}" if by_section else row.key
    facts = [f"Default: `{row.default}`" if row.default else "Default: empty"]
    if rule is not None:
        facts += [f"at least {rule.minimum:,}"] if rule.minimum is not None else []
        facts += [f"at most {rule.maximum:,}"] if rule.maximum is not None else []
        facts += ["one of " + ", ".join(f"`{c}`" for c in rule.choices)] if rule.choices else []
    text = row.text.replace("<", "&lt;").replace("*", "\\*")
    return f"### `{row.key}` {{#{anchor.replace('.', '-')}}}\n\n{text}\n\n{', '.join(facts)}.\n{{: .facts }}\n"
