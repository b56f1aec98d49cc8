"""Changes of groups: move offsets, and delete a group. The console refuses both while the group has
members, or while a Spark query that publishes its progress to the group is running."""

from __future__ import annotations

from urllib.parse import quote

from broker_lite.client.administration import log_positions
from broker_lite.console.changes.change import ChangePlan, Field, Form
from broker_lite.console.changes.topics import cut
from broker_lite.console.page_request import PageRequest
from broker_lite.errors import GroupIdNotFoundError, NonEmptyGroupError
from broker_lite.model import CommittedOffset


def move_fields(request: PageRequest) -> tuple[Field, ...]:
    topics = request.group().topics
    return (
        Field(
            "topic",
            "Topic",
            "select",
            options=(("", "All with offsets of the group"), *((name, name) for name in topics)),
        ),
        Field(
            "to",
            "Move to",
            value="earliest",
            hint="earliest, latest, an offset, +100, -100, @-1h or @2026-11-20T10:00:00Z.",
            required=True,
        ),
    )


def move(request: PageRequest, form: Form) -> ChangePlan:
    name, topic = request.group().name, form.get("topic", "")
    admin = request.bus.admin
    _refuse_members(request, name)
    committed = admin.committed(name)
    names = {tp.topic for tp in committed if topic in ("", tp.topic)}
    view = admin.cluster(sorted(names))
    tps = [tp for each in sorted(names) for tp in view.partitions_of(each)]
    if not tps:
        raise GroupIdNotFoundError(f"group {name!r} has no committed offsets in the chosen topic")
    to = form.get("to", "").strip()
    targets = log_positions.resolve(admin, tps, log_positions.parse(to))
    steps = []
    for tp, offset in targets.items():
        before = committed[tp].offset if tp in committed else None
        steps.append(f"{tp}: from {'nothing' if before is None else before} to {offset}")

    def apply() -> str:
        admin.commit_offsets(
            name,
            {
                tp: CommittedOffset(at, topic_id=view.topic_id(tp.topic))
                for tp, at in targets.items()
            },
        )
        return f"/groups/{quote(name, safe='')}"

    only = ("-t", topic) if topic else ()
    command = ("groups", "reset-offsets", name, *only, "--to", to, "--yes")
    return ChangePlan(cut(steps), apply, name, command)


def delete(request: PageRequest, _: Form) -> ChangePlan:
    row = request.group()
    _refuse_members(request, row.name)

    def apply() -> str:
        request.bus.admin.delete_group(row.name)
        return "/groups"

    count = len(request.reading.lags[row.name].partitions)
    steps = (
        f"Deletes group {row.name!r} with its committed offsets in {count} partitions.",
        "A consumer that joins the group again starts by its auto.offset.reset.",
    )
    return ChangePlan(steps, apply, row.name, ("groups", "delete", row.name, "--yes"))


def _refuse_members(request: PageRequest, name: str) -> None:
    request.bus.admin.refuse_query(name)
    count = len(request.bus.admin.group_members(name))
    if count:
        raise NonEmptyGroupError(
            f"group {name!r} has {count} live members, whose commits would overwrite the change; "
            "stop them first"
        )
