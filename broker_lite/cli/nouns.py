"""Command groups that are named by a noun, such as ``logbus topic``."""

from __future__ import annotations

import click


class Noun(click.Group):
    """A command group that runs its command ``list`` if none is named: ``logbus groups -o json`` is
    ``logbus groups list -o json``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        is_verb = bool(args) and not args[0].startswith("-")
        if not is_verb and not set(args).intersection(ctx.help_option_names):
            args = ["list", *args]
        return super().parse_args(ctx, args)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_paragraph()
        formatter.write_text("Without a command, 'list' runs.")
