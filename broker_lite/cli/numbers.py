"""Types for options whose value is a number. Their error messages are clearer than those of click's
own types ("is not a valid integer range")."""

from __future__ import annotations

import click


class Whole(click.IntRange):
    """A whole number, within bounds if any are given."""

    name = "number"


class Real(click.FloatRange):
    """A number, within bounds if any are given."""

    name = "number"


PORT = Whole(0, 65535)
