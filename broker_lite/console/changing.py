"""Answer the two requests of a change: GET shows its form, or the steps of its plan; POST checks
the typed confirmation, makes the change, and logs the outcome."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from urllib.parse import parse_qsl

from starlette.responses import RedirectResponse, Response

from broker_lite.console.changes.change import Change, ChangePlan
from broker_lite.console.commands import shell
from broker_lite.console.page_request import Data, PageRequest
from broker_lite.errors import InvalidRequestError, LogbusError

logger = logging.getLogger("logbus.console")

FIELDS_MAX = 50
"""Maximum fields of a posted form."""
Render = Callable[[Data, int], Response]


def fields_of(body: bytes) -> dict[str, str]:
    """Return the fields of a posted form. Raises InvalidRequestError for invalid UTF-8 and for too
    many fields."""
    try:
        text = body.decode("utf-8")
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=FIELDS_MAX))
    except ValueError as error:
        raise InvalidRequestError(f"the form cannot be read: {error}") from None


def show(change: Change, request: PageRequest, render: Render) -> Response:
    """Return the page of a change with its form, or, if the form has no fields, with its plan."""
    values = {field.name: field.value for field in change.fields(request)}
    plan = None if values else change.plan(request, {})
    return _page(change, request, values, render, plan=plan)


def submit(
    change: Change, request: PageRequest, form: Mapping[str, str], render: Render
) -> Response:
    """Apply the change that a filled form describes, and redirect to the page that the change
    names.

    If the change needs a confirmation that the user has not typed yet, return the page with the
    plan of the change instead. After an error, return the form with the error."""
    values = {name: value for name, value in form.items() if name not in ("typed", "token")}
    plan = None
    try:
        plan = change.plan(request, form)
        if plan.confirm and "typed" not in form:
            return _page(change, request, values, render, plan=plan)
        if plan.confirm and form["typed"].strip() != plan.confirm:
            text = f"Type {plan.confirm} to confirm. Nothing was changed."
            return _page(change, request, values, render, plan=plan, refusal=text)
        target = plan.apply()
    except LogbusError as error:
        _log(change, request, plan, f"refused: {error}")
        return _page(change, request, values, render, refusal=error.message)
    _log(change, request, plan, "done")
    request.sampler.read_again()
    joint = "&" if "?" in target else "?"
    return RedirectResponse(f"{target}{joint}done={change.key}", 303)


def _page(
    change: Change,
    request: PageRequest,
    values: Mapping[str, str],
    render: Render,
    *,
    plan: ChangePlan | None = None,
    refusal: str = "",
) -> Response:
    """Return the page of a change: its form, or, with ``plan``, the steps to confirm."""
    data: Data = {
        "change": change,
        "fields": [] if plan else [field._asdict() for field in change.fields(request)],
        "values": values,
        "plan": None if plan is None else _shown(plan, request),
        "refusal": refusal,
    }
    return render(data, 400 if refusal else 200)


def _shown(plan: ChangePlan, request: PageRequest) -> Data:
    servers = request.bus.bootstrap_servers
    command = shell(*plan.command, "-b", servers) if plan.command else ""
    return {"steps": plan.steps, "confirm": plan.confirm, "command": command}


def _log(change: Change, request: PageRequest, plan: ChangePlan | None, outcome: str) -> None:
    """Log a change with its user, its objects and its outcome.

    The objects are the names in the URL's path, and the first step of the plan: the path of some
    changes, such as the creation of a topic, has no name."""
    objects = [f"{key}={value!r}" for key, value in request.path.items()]
    objects += [] if plan is None else [plan.steps[0]]
    parts = (f"{change.verb} by {request.viewer.user or '-'!r}", ", ".join(objects), outcome)
    logger.info("%s", ": ".join(filter(None, parts)))
