"""The type of a change: its form, its plan, and its confirmation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

from broker_lite.console.page_request import PageRequest

Form = Mapping[str, str]


class Field(NamedTuple):
    """A field of a form. ``options`` has the value and the label of each choice of a select
    field."""

    name: str
    label: str
    kind: Literal["text", "number", "area", "select", "password"] = "text"
    value: str = ""
    hint: str = ""
    options: tuple[tuple[str, str], ...] = ()
    required: bool = False


class ChangePlan(NamedTuple):
    """The plan of a change.

    ``steps`` are sentences. ``confirm`` is the text that the user must type, or "" without a
    confirmation. ``apply`` executes the change and returns the address to open next.
    """

    steps: tuple[str, ...]
    apply: Callable[[], str]
    confirm: str = ""
    command: tuple[str, ...] = ()
    """The command line, as words, for the same change. It omits the address of the cluster."""


Planner = Callable[[PageRequest, Form], ChangePlan]
"""A function that returns the plan for a filled form. It raises LogbusError for a form that cannot
be applied."""


def no_fields(_: PageRequest) -> tuple[Field, ...]:
    """Return a form without fields."""
    return ()


class Change(NamedTuple):
    """A change at the address ``path``. ``done`` is the sentence that reports its success.

    ``fields`` returns the fields of the form. ``plan`` returns the plan for a filled form. Both may
    raise LogbusError. Every plan of a change with ``is_dangerous`` demands a typed confirmation. A
    plan of another change demands a confirmation if it would lose data.
    """

    path: str
    title: str
    verb: str
    done: str
    plan: Planner
    fields: Callable[[PageRequest], tuple[Field, ...]] = no_fields
    intro: str = ""
    is_dangerous: bool = False

    @property
    def section(self) -> str:
        """The entry of the navigation to which the change belongs."""
        return self.path.split("/")[1]

    @property
    def key(self) -> str:
        """The change's key in ``table.DONE``, which the address of the next page contains."""
        return self.path.replace("{", "").replace("}", "").strip("/").replace("/", "-")
