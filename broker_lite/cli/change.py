"""Confirmation of changes: the options ``--yes`` and ``--dry-run``."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import click

from broker_lite.cli import output
from broker_lite.cli.context import Command
from broker_lite.cli.main import EXIT_FAILED


class ChangeOptions(NamedTuple):
    """The values of ``--yes`` and ``--dry-run``."""

    yes: bool
    dry_run: bool

    def is_wanted(self, question: str = "") -> bool:
        """Return whether to make the change: False with --dry-run, else True.

        Asks ``question`` first, unless it is empty or --yes is given; with --dry-run, only prints
        it. Exits with EXIT_FAILED if the answer is no."""
        if self.dry_run:
            output.say(f"{question}\nnothing was changed (--dry-run)".lstrip())
        elif question and not self.yes and not _is_confirmed(question):
            output.say("nothing was changed; --yes answers the question")
            raise click.exceptions.Exit(EXIT_FAILED)
        return not self.dry_run


def _is_confirmed(question: str) -> bool:
    """Ask a question on stderr, and return whether the answer is yes. The end of stdin counts as
    no. Raises click.Abort on Ctrl-C."""
    try:
        return click.confirm(question, err=True)
    except click.Abort as abort:
        if isinstance(abort.__context__, EOFError):
            return False
        raise


def change_options(command: Command) -> Command:
    """Add the options ``--yes`` and ``--dry-run`` to a command, which receives their values as
    ``change``."""

    @functools.wraps(command)
    def changing(*, yes: bool, dry_run: bool, **rest: Any) -> Any:
        return command(change=ChangeOptions(yes, dry_run), **rest)

    changing = click.option("--dry-run", is_flag=True, help="Only show what would change.")(
        changing
    )
    return click.option("--yes", is_flag=True, help="Make the change without asking.")(changing)


if_exists_option = click.option(
    "--if-exists", is_flag=True, help="No error if there is nothing to delete."
)
