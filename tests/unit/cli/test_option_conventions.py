"""Tests of options that all commands of a kind share, such as ``--dry-run`` with ``--yes``."""

from __future__ import annotations

import click
import pytest
from support.command_tree import commands

from broker_lite.cli.completion import ClusterName
from broker_lite.cli.main import cli

COMMANDS = [(path, each) for path, each in commands(cli) if not isinstance(each, click.Group)]
NAMES = [" ".join(path) for path, _ in COMMANDS]
NO_ROWS = {("completion",), ("config", "template")}
"""Commands that print a file or a script."""

CHANGING = (
    *("abort", "add", "alter", "create", "delete", "elect", "reassign", "renew"),
    *("reset-offsets", "retire", "rotate", "secure", "seek", "set", "strays", "trim"),
)
"""Verbs that change a cluster, or files that a cluster needs."""
ONLY_HERE = {("context", "create")}
"""Creates a name on this machine; 'delete' removes it."""


def options(command: click.Command) -> set[str]:
    """Return the names of a command's options."""
    return {name for each in command.params for name in each.opts if name.startswith("-")}


def named(*verbs: str) -> list[tuple[str, ...]]:
    """Return the paths, such as (topic, delete), of all commands with one of these verbs."""
    return [path for path, _ in COMMANDS if path[-1] in verbs and len(path) > 1]


def of(path: tuple[str, ...]) -> set[str]:
    return options(dict(COMMANDS)[path])


@pytest.mark.parametrize("path", named("delete"), ids=" ".join)
def test_every_delete_command_has_the_options_if_exists_yes_and_dry_run(
    path: tuple[str, ...],
) -> None:
    assert {"--if-exists", "--yes", "--dry-run"} <= of(path)


@pytest.mark.parametrize("path", named(*CHANGING), ids=" ".join)
def test_command_that_makes_a_change_has_dry_run(path: tuple[str, ...]) -> None:
    """Regression: ``user rotate``, ``quota set``, ``cert renew`` and others had no --dry-run."""
    assert path in ONLY_HERE or "--dry-run" in of(path)


@pytest.mark.parametrize(
    ("path", "command"), COMMANDS, ids=[" ".join(path) for path, _ in COMMANDS]
)
def test_option_that_names_a_topic_or_group_is_completed_by_the_shell(
    path: tuple[str, ...], command: click.Command
) -> None:
    for each in command.params:
        if {"--topic", "--group"}.intersection(each.opts):
            assert isinstance(each.type, ClusterName), each.opts


@pytest.mark.parametrize("path", named("create", "add"), ids=" ".join)
def test_create_command_has_if_not_exists(path: tuple[str, ...]) -> None:
    assert "--if-not-exists" in of(path)


@pytest.mark.parametrize(
    ("path", "command"), COMMANDS, ids=[" ".join(path) for path, _ in COMMANDS]
)
def test_command_that_prints_rows_has_the_option_output(
    path: tuple[str, ...], command: click.Command
) -> None:
    if path not in NO_ROWS and path[0] != "generate":
        assert "--output" in options(command)


@pytest.mark.parametrize(
    ("path", "command"), COMMANDS, ids=[" ".join(path) for path, _ in COMMANDS]
)
def test_command_with_yes_option_has_dry_run(path: tuple[str, ...], command: click.Command) -> None:
    found = options(command)
    assert ("--yes" in found) == ("--dry-run" in found) or path == ("topic", "create")
