"""Types that describe a change which a page offers: its form, its plan, and its confirmation."""

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
    """The plan of a change, which the user sees before the change is made.

    ``steps`` are sentences that say what will happen. ``confirm`` is the text that the user must
    type to confirm, or "" if no confirmation is needed. ``apply`` makes the change and returns the
    address of the page to open next."""

    steps: tuple[str, ...]
    apply: Callable[[], str]
    confirm: str = ""
    command: tuple[str, ...] = ()
    """The command line, as words, for the same change, without the address of the cluster."""


Planner = Callable[[PageRequest, Form], ChangePlan]
"""Returns the plan of a change, from the filled form. Raises LogbusError for wrong values."""


def no_fields(_: PageRequest) -> tuple[Field, ...]:
    """Return a form without fields."""
    return ()


class Change(NamedTuple):
    """A kind of change, such as "Create a topic", with the address ``path`` of its form. ``done``
    is the sentence that reports success.

    ``fields`` returns the fields of the form, and ``plan`` the ChangePlan for a filled form; both
    may raise LogbusError. With ``is_dangerous``, every plan demands a typed confirmation; otherwise
    only a plan that would lose data does."""

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
        """The change's key. The address of the next page contains it, and ``table.DONE`` has the
        sentence that this page then shows."""
        return self.path.replace("{", "").replace("}", "").strip("/").replace("/", "-")
