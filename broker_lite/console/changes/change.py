"""The type of a change: its form, its plan, and its confirmation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

from broker_lite.console.page_request import PageRequest

Form = Mapping[str, str]


class Field(NamedTuple):
    """A field of a form. ``options`` are the choices of a select."""

    name: str
    label: str
    kind: Literal["text", "number", "area", "select", "password"] = "text"
    value: str = ""
    hint: str = ""
    options: tuple[tuple[str, str], ...] = ()
    required: bool = False


class ChangePlan(NamedTuple):
    """The plan of a change. ``steps`` are sentences. ``confirm`` is the text that the user must
    type (empty: none). ``apply`` executes the change and returns the address to open next."""

    steps: tuple[str, ...]
    apply: Callable[[], str]
    confirm: str = ""
    command: str = ""
    """The same change on the command line."""


def no_fields(_: PageRequest) -> tuple[Field, ...]:
    """Return a form without fields."""
    return ()


class Change(NamedTuple):
    """A change at the address ``path``. ``done`` is the sentence that reports its success.

    ``fields`` returns the form, ``plan`` reads a filled form; both may raise LogbusError.
    ``is_dangerous``: each plan demands a typed confirmation; the plans of other changes may.
    """

    path: str
    title: str
    verb: str
    done: str
    plan: Callable[[PageRequest, Form], ChangePlan]
    fields: Callable[[PageRequest], tuple[Field, ...]] = no_fields
    intro: str = ""
    is_dangerous: bool = False

    @property
    def section(self) -> str:
        """The entry of the navigation that the change belongs to."""
        return self.path.split("/")[1]

    @property
    def key(self) -> str:
        """The key in the next page's address by which the page finds ``done``."""
        return self.path.replace("{", "").replace("}", "").strip("/").replace("/", "-")
