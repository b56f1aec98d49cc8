"""A change that a command asks about first: the options ``--yes`` and ``--dry-run``."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import click

from broker_lite.cli import output
from broker_lite.cli.context import Command


class ChangeOptions(NamedTuple):
    """The given options of a change."""

    yes: bool
    dry_run: bool

    def is_wanted(self, question: str = "") -> bool:
        """Return False for a dry run, else ask the question. Raises click.Abort if the answer is
        no. Without a question, the change can be undone."""
        if self.dry_run:
            output.say("nothing was changed (--dry-run)")
        elif question and not self.yes:
            try:
                click.confirm(question, abort=True, err=True)
            except click.Abort:
                output.say("nothing was changed; --yes answers the question")
                raise
        return not self.dry_run


def change_options(command: Command) -> Command:
    """Add ``--yes`` and ``--dry-run``; the command receives them as ``change``."""

    @functools.wraps(command)
    def changing(*, yes: bool, dry_run: bool, **rest: Any) -> Any:
        return command(change=ChangeOptions(yes, dry_run), **rest)

    changing = click.option("--dry-run", is_flag=True, help="Only show what would change.")(
        changing
    )
    return click.option("--yes", is_flag=True, help="Do it without asking.")(changing)


if_exists_option = click.option(
    "--if-exists", is_flag=True, help="No error if there is nothing to delete."
)
