"""Commands that pages, messages and templates name exist, with their options."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from broker_lite.cli.main import cli
from broker_lite.cli.nouns import Noun

ROOT = Path(__file__).parents[3]
FOLDERS = ("broker_lite", "conf", "docs/pages", "docs/sitegen", "notebooks", "pyspark_logbus")
ENDINGS = (".conf", ".html", ".md", ".py", ".yaml")
PROGRAMS = ("demo", "checkpoint")
"""Commands that run a program with options of its own."""

_NAMED = re.compile(r"(?<![\w./-])logbus((?: (?:--?[A-Za-z][\w-]*|[A-Za-z<{@%$\d][^\s`\"'|;&]*))+)")
_OPTION = re.compile(r"--?[A-Za-z][\w-]*")


def faults(text: str) -> Iterator[str]:
    """Yield each command of the text that has an option which its command lacks. A text of Python
    may break a command in two literals."""
    joined = re.sub(r'"\s*\n\s*f?"', "", text)
    for found in _NAMED.finditer(joined):
        # A colon ends the command.
        words = [word.rstrip(".,)*") for word in re.split(r":(?:\s|$)", found[1])[0].split()]
        command: click.Command = cli
        path: list[str] = []
        while isinstance(command, click.Group) and words and not words[0].startswith("-"):
            inner = command.get_command(click.Context(command), words[0])
            if inner is None:
                break
            path.append(words.pop(0))
            command = inner
        if not path or path[0] in PROGRAMS:
            continue
        known = options(command)
        for word in words:
            name = word.partition("=")[0]
            is_known = name in known or (name[:2] in known and not name.startswith("--"))
            if _OPTION.fullmatch(name) and not is_known:
                yield f"{found[0]}: logbus {' '.join(path)} has no {name}"


def options(command: click.Command) -> set[str]:
    """Return the options of a command; a noun without a verb lists."""
    if isinstance(command, Noun):
        inner = command.get_command(click.Context(command), "list")
        assert inner is not None
        command = inner
    return {"-h", "--help"} | {name for each in command.params for name in each.opts}


def test_every_named_command_has_its_options() -> None:
    paths = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*")]
    paths = [*paths, ROOT / "README.md", ROOT / "CHANGELOG.md"]
    found = [
        f"{path.relative_to(ROOT)}: {fault}"
        for path in paths
        if path.suffix in ENDINGS
        for fault in faults(path.read_text("utf-8"))
    ]
    assert found == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("logbus topic reassign --off 2 --force", ["logbus topic reassign has no --force"]),
        ('"logbus topic reassign t "\n    f"--brokers 1"', ["topic reassign has no --brokers"]),
        ("`logbus groups -o json`, or `logbus up -d --console`.", []),
        ("the logbus of today --really", []),
    ],
)
def test_option_that_a_command_lacks_is_found(text: str, said: list[str]) -> None:
    found = list(faults(text))
    assert len(found) == len(said)
    assert all(each in fault for each, fault in zip(said, found, strict=True))
