"""Types for options whose value is a number, with clearer error messages than those of click's own
types ("is not a valid integer range")."""

from __future__ import annotations

import math
from typing import Any

import click


class Whole(click.IntRange):
    """A whole number, within bounds if any are given."""

    name = "number"


class Real(click.FloatRange):
    """A number, within bounds if any are given. "nan" is refused, because no comparison with a
    limit would hold."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value!r} is not a valid number.", param, ctx)
        return number


PORT = Whole(0, 65535)
INT16 = Whole(max=(1 << 15) - 1)
INT32 = Whole(max=(1 << 31) - 1)
