"""Changes of topics: create, delete, produce a record, alter a setting, elect leaders, reassign,
delete records.
"""

from __future__ import annotations

from urllib.parse import quote

from broker_lite.client.administration import log_positions, replica_plans
from broker_lite.config import loss_of
from broker_lite.console.changes.change import ChangePlan, Field, Form
from broker_lite.console.formats import plural, sentence
from broker_lite.console.page_request import PageRequest
from broker_lite.console.pages.topics import FIXED
from broker_lite.errors import ElectionNotNeededError, InvalidRequestError
from broker_lite.model import TopicPartition

STEPS_MAX = 50
"""Maximum number of steps, one for each partition, that the plan of a change lists."""
PRODUCE_S = 15.0
"""Maximum seconds until brokers acknowledge a produced record."""


def _number(form: Form, name: str, default: int) -> int:
    text = form.get(name, "").strip()
    if not text:
        return default
    if not text.removeprefix("-").isdigit() or not text.isascii() or len(text) > 18:
        raise InvalidRequestError(f"{name}={text[:40]!r}: give a whole number")
    return int(text)


def _pairs(text: str, what: str) -> list[tuple[str, str]]:
    """Parse lines of NAME=VALUE into pairs. Raises InvalidRequestError for a bad line, whose
    message names the form field by ``what``, such as "header"."""
    pairs = []
    for line in filter(None, map(str.strip, text.splitlines())):
        name, equals, value = line.partition("=")
        if not equals or not name.strip():
            raise InvalidRequestError(f"{what} {line[:60]!r}: write NAME=VALUE in each line")
        pairs.append((name.strip(), value.strip()))
    return pairs


def _address(name: str, tab: str) -> str:
    return f"/topics/{quote(name, safe='')}/{tab}"


def create_fields(request: PageRequest) -> tuple[Field, ...]:
    brokers = len(request.view.brokers)
    return (
        Field("name", "Name", hint="Letters, digits, '.', '_' and '-'.", required=True),
        Field("partitions", "Partitions", "number", "3", "More can be added later, never fewer."),
        Field(
            "replicas",
            "Replicas of each",
            "number",
            str(min(3, brokers)),
            f"{brokers} brokers run. With 3 replicas, the topic survives the loss of two brokers.",
        ),
        Field("settings", "Settings", "area", hint="retention.ms=86400000, one in a line."),
    )


def create(request: PageRequest, form: Form) -> ChangePlan:
    name = form.get("name", "").strip()
    partitions, replicas = _number(form, "partitions", -1), _number(form, "replicas", -1)
    settings = dict(_pairs(form.get("settings", ""), "setting"))

    def apply() -> str:
        request.bus.admin.create_topic(name, partitions, replicas, settings)
        return _address(name, "messages")

    return ChangePlan((f"Creates topic {name!r}.",), apply)


def delete(request: PageRequest, _: Form) -> ChangePlan:
    topic = request.topic()
    row = request.reading.topics[topic.name]

    def apply() -> str:
        request.bus.admin.delete_topic(topic.name)
        return "/topics"

    steps = (
        f"Deletes topic {topic.name!r} with {plural(row.partitions, 'partition')} and "
        f"{plural(row.records, 'record')} on every replica.",
        "Groups keep their offsets in it until they expire. A deleted topic cannot be restored.",
    )
    return ChangePlan(steps, apply, topic.name, ("topic", "delete", topic.name, "--yes"))


def produce_fields(request: PageRequest) -> tuple[Field, ...]:
    count = len(request.topic().partitions)
    choices = (("", "By key"), *((str(number), str(number)) for number in range(count)))
    return (
        Field("key", "Key", hint="Empty: no key. Records with equal keys share a partition."),
        Field("value", "Value", "area", hint="Text, sent as UTF-8."),
        Field("headers", "Headers", "area", hint="NAME=VALUE, one in a line."),
        Field("partition", "Partition", "select", options=choices),
    )


def produce(request: PageRequest, form: Form) -> ChangePlan:
    name = request.topic().name
    partition = _number(form, "partition", -1)
    headers = [(key, value.encode()) for key, value in _pairs(form.get("headers", ""), "header")]
    # Browsers send line ends of a form as CR LF. Store LF.
    value = form.get("value", "").replace("\r\n", "\n").encode()
    key = form.get("key", "").encode() or None

    def apply() -> str:
        with request.bus.producer(delivery_timeout_ms=int(PRODUCE_S * 1000)) as producer:
            sent = producer.send(
                name,
                value,
                key=key,
                headers=headers,
                partition=partition if partition >= 0 else None,
            ).result(PRODUCE_S)
        return (
            f"{_address(name, 'messages')}?partition={sent.partition}&from=offset&at={sent.offset}"
        )

    return ChangePlan((f"Appends one record to topic {name!r}.",), apply)


def alter_fields(request: PageRequest) -> tuple[Field, ...]:
    topic = request.topic()
    (settings,) = request.bus.admin.describe_configs(topics=[topic.name]).values()
    chosen = request.query.get("setting", "")
    names = sorted(set(settings) - FIXED)
    value, hint = "", "Empty: back to the default."
    if chosen in settings:
        value = settings[chosen].value or ""
        doc = settings[chosen].documentation
        hint = f"{sentence(doc)}. {hint}" if doc else hint
    return (
        Field("setting", "Setting", "select", chosen, options=tuple((n, n) for n in names)),
        Field("value", "Value", value=value, hint=hint),
    )


def alter(request: PageRequest, form: Form) -> ChangePlan:
    topic = request.topic()
    setting, value = form.get("setting", ""), form.get("value", "").strip() or None
    admin = request.bus.admin
    admin.alter_configs(topic.name, {setting: value}, validate_only=True)
    (settings,) = admin.describe_configs(topics=[topic.name]).values()
    before = settings[setting].value if setting in settings else None

    def apply() -> str:
        admin.alter_configs(topic.name, {setting: value})
        return _address(topic.name, "settings")

    to = "its default" if value is None else value
    loss = loss_of(setting, before, value)
    steps = (f"Changes {setting} of topic {topic.name!r} from {before} to {to}.", loss)
    option = ("--reset", setting) if value is None else ("-c", f"{setting}={value}")
    command = ("topic", "alter", topic.name, *option, "--yes")
    return ChangePlan(tuple(filter(None, steps)), apply, topic.name if loss else "", command)


def elect(request: PageRequest, _: Form) -> ChangePlan:
    topic = request.topic()
    tps = request.view.partitions_of(topic.name)

    def apply() -> str:
        failed = [
            f"{tp}: {error.message}"
            for tp, error in request.bus.admin.elect_leaders(tps).items()
            if error is not None and not isinstance(error, ElectionNotNeededError)
        ]
        if failed:
            raise InvalidRequestError("; ".join(failed[:3]))
        return _address(topic.name, "partitions")

    steps = (f"Elects the preferred leaders of topic {topic.name!r}.",)
    return ChangePlan(steps, apply, command=("topic", "elect", topic.name))


def reassign_fields(request: PageRequest) -> tuple[Field, ...]:
    ids = ",".join(map(str, sorted(request.view.brokers)))
    return (Field("brokers", "Brokers", value=ids, hint="Ids, such as 0,1,2.", required=True),)


def reassign(request: PageRequest, form: Form) -> ChangePlan:
    topic = request.topic()
    text = form.get("brokers", "")
    ids = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) < 10 for part in ids):
        raise InvalidRequestError(f"brokers {text[:60]!r}: give ids, such as 0,1,2")
    admin = request.bus.admin
    view = admin.cluster()
    tps = view.partitions_of(topic.name)
    moves = replica_plans.to_brokers(view, admin.reassignments(), tps, tuple(map(int, ids)))
    if not moves:
        raise InvalidRequestError(
            f"topic {topic.name!r} has its replicas on brokers {text[:60]} already"
        )
    steps = [
        f"Partition {tp.partition}: from {_ids(view.partition(tp))} to {', '.join(map(str, row))}"
        for tp, row in moves.items()
    ]

    def apply() -> str:
        admin.reassign(moves)
        return _address(topic.name, "partitions")

    command = ("topic", "reassign", topic.name, "--replicas", ",".join(ids), "--yes")
    return ChangePlan(cut(steps), apply, topic.name, command)


def _ids(partition: object) -> str:
    return ", ".join(map(str, getattr(partition, "replicas", ())))


def cut(steps: list[str]) -> tuple[str, ...]:
    """Return the first ``STEPS_MAX`` steps of a plan, and a text that counts the others."""
    if len(steps) <= STEPS_MAX:
        return tuple(steps)
    return (*steps[:STEPS_MAX], f"and {len(steps) - STEPS_MAX} more partitions")


def trim_fields(request: PageRequest) -> tuple[Field, ...]:
    count = len(request.topic().partitions)
    choices = (("", "All"), *((str(number), str(number)) for number in range(count)))
    return (
        Field("partition", "Partition", "select", options=choices),
        Field(
            "before",
            "Delete records before",
            hint="An offset, -100 (all but the last 100), @-1d, @2026-11-20 or latest.",
            required=True,
        ),
    )


def trim(request: PageRequest, form: Form) -> ChangePlan:
    topic = request.topic()
    number = _number(form, "partition", -1)
    tps = request.view.partitions_of(topic.name)
    tps = tuple(tp for tp in tps if number in (-1, tp.partition))
    admin = request.bus.admin
    before = form.get("before", "").strip()
    targets = log_positions.resolve(admin, tps, log_positions.parse(before))
    starts = log_positions.resolve(admin, tps, log_positions.parse("earliest"))
    lost = {tp: at - starts[tp] for tp, at in targets.items() if at > starts[tp]}
    if not lost:
        raise InvalidRequestError(
            f"topic {topic.name!r} has no records before {before!r}; give a later position"
        )
    steps = [
        f"Deletes {plural(sum(lost.values()), 'record')} of topic {topic.name!r} on every replica."
    ]
    steps += [f"Partition {tp.partition}: {count:,} records" for tp, count in lost.items()]

    def apply() -> str:
        admin.delete_records({TopicPartition(*tp): targets[tp] for tp in lost})
        return _address(topic.name, "partitions")

    only = () if number < 0 else ("-p", str(number))
    command = ("topic", "trim", topic.name, "--before", before, *only, "--yes")
    return ChangePlan(cut(steps), apply, topic.name, command)
