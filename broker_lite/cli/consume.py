"""``logbus consume``: print a topic to the terminal, a pipe or a file."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from broker_lite.cli import offset_spec, output
from broker_lite.cli.completion import GROUP, TOPIC
from broker_lite.cli.context import (
    bootstrap,
    chosen_partitions,
    cluster_options,
    found_topic,
    key_values,
    settings_option,
)
from broker_lite.cli.contexts import ChosenCluster
from broker_lite.cli.numbers import Real, Whole
from broker_lite.client.administration import log_positions
from broker_lite.client.operations.cluster import deleted_topic
from broker_lite.errors import NonEmptyGroupError, UnknownTopicOrPartitionError
from broker_lite.model import LATEST_TIMESTAMP, TopicPartition
from broker_lite.security.acls import Operation

if TYPE_CHECKING:
    from broker_lite.cli.records import Printer
    from broker_lite.client.administration.admin import Admin
    from broker_lite.client.consuming.consumer import Consumer

_POLL_SECONDS = 0.5
_SESSION_MS = 10_000
"""Session timeout of the group member in ms. It is shorter than the default, because after a killed
command the next command waits this long for the partitions."""

_START_HELP = (
    "earliest, latest, N, +N, -N, @TIME, @-1h. Default: earliest. With -g it replaces the group's "
    "committed offsets, so that records are read again or skipped."
)


@click.command()
@click.argument("topics", nargs=-1, required=True, type=TOPIC)
@click.option("-s", "--start", help=_START_HELP)
@click.option("--end", help="Stop at this position; same forms as --start.")
@click.option("-e", "--exit", "at_end", is_flag=True, help="Stop at the end of the logs as of now.")
@click.option("-n", "--count", type=Whole(min=1), help="Stop after this many records.")
@click.option(
    "-t", "--timeout", type=Real(min=0), help="Stop after this many idle seconds; exit code 124."
)
@click.option(
    "-g", "--group", type=GROUP, help="Join this group and commit to it; -s moves its offsets."
)
@click.option(
    "-i",
    "--instance",
    "group_instance_id",
    help="A static member's name: a restart causes no rebalance.",
)
@click.option("-p", "--partition", type=int, multiple=True, help="Only these partitions.")
@click.option(
    "-f", "--format", "template", help="As in kcat: %t %p %o %k %v %T %h and \\n \\t \\xNN."
)
@click.option(
    "-o",
    "--output",
    "form",
    type=click.Choice(("raw", "json", "jsonl", "arrow", "parquet")),
    help="raw: values, a line each (default). json, jsonl: a record as one JSON object a line.",
)
@click.option(
    "--value-format",
    default="auto",
    show_default=True,
    type=click.Choice(("auto", "str", "json", "base64")),
    help="Form of values in JSON. auto: objects and arrays as JSON, others as text.",
)
@click.option("--grep", help="Only values that contain a match of this pattern (RE2).")
@click.option("--key", "wanted_key", help="Only records with this key.")
@click.option("--header", metavar="NAME[=VALUE]", help="Only records with this header.")
@click.option(
    "--skip-corrupt",
    "on_corrupt",
    flag_value="skip",
    help="Skip batches whose checksum is wrong.",
)
@settings_option
@cluster_options
def consume(
    topics: tuple[str, ...],
    start: str | None,
    end: str | None,
    at_end: bool,
    count: int | None,
    timeout: float | None,
    group: str | None,
    group_instance_id: str | None,
    partition: tuple[int, ...],
    template: str | None,
    form: str | None,
    value_format: str,
    grep: str | None,
    wanted_key: str | None,
    header: str | None,
    on_corrupt: str | None,
    settings: tuple[str, ...],
    cluster: ChosenCluster,
) -> int:
    """Print the records of TOPICS, from the earliest on, and wait for more.

    In contrast, the Python client begins at the latest record unless start="earliest" is given.

    Without -g the command commits nothing and leaves no group behind. With -g it shares the
    partitions with the other members of the group, and commits the records that it printed. After
    a kill the next run may print the last records again; it skips none. With -o parquet it commits
    once the file is complete. With -p it reads exactly these partitions and joins no group.

    \b
    Examples:
      logbus consume events -e
      logbus consume events -s @-1h --grep ERROR
      logbus consume events -g readers -f '%p %o %k %v\\n'
      logbus consume events -e -o parquet > events.parquet
    """
    from broker_lite.cli.records import printer
    from broker_lite.client.administration.admin import Admin

    given = key_values(settings, "-X")
    _check_member_options(group if not partition else None, group_instance_id, given)
    out = printer(form, template, value_format)
    chooser = RecordChooser(grep, wanted_key, header)
    servers = bootstrap(cluster)
    with Admin(servers, client_id="logbus-cli") as admin:
        chosen = partitions_to_read(admin, topics, partition)
        _check_no_members(admin, group if partition else None)
        spec = offset_spec.parse(start) if start else None
        starts = log_positions.resolve(admin, chosen, spec) if spec is not None else {}
        ends = end_offsets(admin, chosen, end, at_end)
    _print_start(group, start, spec, starts)
    options: dict[str, Any] = {
        "start": "earliest",
        "client_id": "logbus-cli",
        "on_corrupt": on_corrupt or "fail",
        "auto_commit": form != "parquet",
        "session_timeout_ms": _SESSION_MS,
        "group_instance_id": group_instance_id or "",
    }
    # With ``fixed``, the consumer ignores partitions that are added after its start.
    fixed = chosen if partition or (ends and group is None) else None
    with TopicReader(servers, topics, group, starts, options, given).open(fixed) as consumer:
        code: int | None = None
        try:
            code = print_all(consumer, out, chooser, PrintLimits(ends, count, timeout, topics))
        finally:
            out.close()
            if group is not None and form == "parquet":
                consumer.commit(consumer.settled() if code is None else None)
        return code


def _check_member_options(
    group: str | None, instance: str | None, settings: dict[str, str]
) -> None:
    """Raise click.UsageError for an option or setting that only a member of a group can use, if
    ``group`` is None."""
    from broker_lite.client.options import only_of_members

    if group is not None:
        return
    refused = ["--instance"] if instance is not None else []
    refused += [f"-X {key}" for key in only_of_members(settings)]
    if refused:
        raise click.UsageError(f"{refused[0]} is for members of a group: give -g, without -p")


def _check_no_members(admin: Admin, group: str | None) -> None:
    """Raise NonEmptyGroupError if there is a group with members: they alone may commit to it."""
    if group is not None and admin.group_members(group):
        raise NonEmptyGroupError(
            f"group {group!r} has members, and -p with -g needs a group without members. Stop the "
            "members, name another group, or leave -p out to join the group; without -g, the "
            "command reads the partitions and commits nothing"
        )


def _print_start(
    group: str | None,
    start: str | None,
    spec: log_positions.PositionSpec | None,
    starts: dict[TopicPartition, int],
) -> None:
    """Tell the user on stderr that --start replaces the group's committed offsets, and warn of a
    start offset beyond the log end offset."""
    if spec is None:
        return
    if group is not None:
        output.say(f"group {group}: -s {start} replaces its committed offsets")
    if spec.kind == "offset":
        _warn_past_end(spec.value, starts)


@dataclass(slots=True)
class TopicReader:
    """Opens the consumer of a command that reads topics.

    ``starts`` has the start offset of each partition; the consumer seeks to it at its first
    assignment of the partition. ``options`` are the command's settings of the consumer;
    ``settings`` (from -X) override them."""

    servers: str
    topics: tuple[str, ...]
    group: str | None
    starts: dict[TopicPartition, int]
    options: dict[str, Any]
    settings: dict[str, str]

    def open(self, partitions: list[TopicPartition] | None) -> Consumer:
        """Open the consumer: as a member of ``group`` if there is a group and ``partitions`` is
        None; otherwise it reads the given partitions, or all, and joins no group."""
        from broker_lite.client.consuming.consumer import Consumer
        from broker_lite.client.options import build
        from broker_lite.config import ConsumerConfig

        if self.group is not None and partitions is None:
            return self._member(self.group)
        consumer = Consumer(
            self.servers,
            self.topics,
            group=self.group,
            partitions=partitions,
            config=build(ConsumerConfig, self.settings, self.options),
        )
        self._seek(consumer, consumer.assignment())
        return consumer

    def _member(self, group: str) -> Consumer:
        from broker_lite.client.callbacks import Callbacks
        from broker_lite.client.consuming.consumer import Consumer
        from broker_lite.client.membership.kafka_membership import in_group
        from broker_lite.client.membership.settings import MemberConfig
        from broker_lite.client.options import build

        return Consumer(
            self.servers,
            self.topics,
            group=group,
            config=build(MemberConfig, self.settings, self.options),
            callbacks=Callbacks(on_assign=self._begin),
            joining=in_group(self.topics),
        )

    def _begin(self, consumer: Consumer, tps: list[TopicPartition]) -> None:
        """Seek to the starts of a group member's new partitions, and commit them.

        Otherwise a member that is assigned a partition again, before its first commit, would begin
        at the offset that the start has replaced, or at the earliest one."""
        starts = self._seek(consumer, tps)
        if starts:
            consumer.commit(starts)

    def _seek(self, consumer: Consumer, tps: list[TopicPartition]) -> dict[TopicPartition, int]:
        """Seek to the start of each partition that has not begun yet. Return these starts."""
        starts = {tp: self.starts.pop(tp) for tp in tps if tp in self.starts}
        for tp, offset in starts.items():
            consumer.seek(tp, offset)
        return starts


class RecordChooser:
    """Selects the records of a batch by --grep, --key and --header."""

    def __init__(self, grep: str | None, key: str | None, header: str | None = None) -> None:
        self._grep = _pattern(grep) if grep is not None else None
        self._key = os.fsencode(key) if key is not None else None
        self._header = header

    def choose(self, batch: Any) -> Any:
        import pyarrow.compute as pc

        from broker_lite.client.arrays import scalar_of
        from broker_lite.client.record_filters import has_header

        if self._grep is not None:
            matches = pc.match_substring_regex(batch.column("value"), self._grep)
            batch = batch.filter(matches)
        if self._key is not None:
            batch = batch.filter(pc.equal(batch.column("key"), scalar_of(self._key)))
        if self._header is not None and batch.num_rows:
            batch = batch.filter(has_header(batch.column("headers"), self._header))
        return batch


def _pattern(grep: str) -> bytes:
    """Return the pattern of --grep. Raises click.BadParameter if RE2 does not accept it."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from broker_lite.client.arrays import binary_of

    pattern = os.fsencode(grep)
    try:
        pc.match_substring_regex(binary_of([b""]), pattern)
    except pa.ArrowInvalid as error:
        said = f"{grep!r}: {error}; write it in the syntax of RE2"
        raise click.BadParameter(said, param_hint="--grep") from None
    return pattern


def partitions_to_read(
    admin: Admin, topics: tuple[str, ...], numbers: tuple[int, ...]
) -> list[TopicPartition]:
    """Return the partitions ``numbers`` of each topic, or all partitions if it is empty. Raises
    click.BadParameter for a missing partition, UnknownTopicOrPartitionError for a missing topic."""
    view = admin.cluster()
    found = (found_topic(view, name, user=admin.user, operation=Operation.READ) for name in topics)
    return [tp for topic in found for tp in chosen_partitions(topic, numbers)]


def _warn_past_end(offset: int, starts: dict[TopicPartition, int]) -> None:
    ends = [f"{tp} ends at {at}" for tp, at in sorted(starts.items()) if at < offset]
    if ends:
        output.say(f"offset {offset} is past the end: {', '.join(ends)}; reading begins there")


def end_offsets(
    admin: Admin, chosen: list[TopicPartition], end: str | None, at_end: bool
) -> dict[TopicPartition, int]:
    """Return the offset at which to stop, by partition; empty without --end and --exit."""
    if end is not None:
        return log_positions.resolve(admin, chosen, offset_spec.parse(end))
    if at_end:
        ends = admin.list_offsets(dict.fromkeys(chosen, LATEST_TIMESTAMP))
        return {tp: listed.offset for tp, listed in ends.items()}
    return {}


class PrintLimits(NamedTuple):
    """Limits at which printing stops: the end offset of each partition, the number of records, the
    seconds without records, and the deletion of one of ``topics``. None or an empty value means no
    limit."""

    ends: dict[TopicPartition, int]
    records: int | None
    timeout: float | None
    topics: tuple[str, ...] = ()


def print_all(
    consumer: Consumer,
    out: Printer,
    chooser: RecordChooser,
    limits: PrintLimits,
    bar: output.ProgressBar | None = None,
) -> int:
    """Print records until a limit is reached. Return the exit code: 124 after ``limits.timeout``,
    else 0. Without ``bar``, the function has a progress bar of its own, shown if stdout is a
    file. Raises UnknownTopicOrPartitionError if a topic is deleted."""
    with contextlib.closing(bar or output.ProgressBar("records")) as shown:
        return _print_beside(shown, consumer, out, chooser, limits)


def _print_beside(
    bar: output.ProgressBar,
    consumer: Consumer,
    out: Printer,
    chooser: RecordChooser,
    limits: PrintLimits,
) -> int:
    ends, left, timeout, topics = limits
    bounded = bool(ends)
    last_seen = time.monotonic()
    while True:
        output.raise_if_unread()
        _raise_if_deleted(consumer, topics)
        if left == 0 or (bounded and _is_read(consumer, ends)):
            return 0
        batch = consumer.poll_arrow(_POLL_SECONDS, headers=True, max_rows=left)
        if batch.num_rows == 0:
            if timeout is not None and time.monotonic() - last_seen > timeout:
                return 124
            continue
        last_seen = time.monotonic()
        if bounded:
            tps = [tp for tp in consumer.assignment() if tp in ends]
            bar.advance(batch.num_rows, sum(max(0, ends[tp] - consumer.position(tp)) for tp in tps))
        batch = chooser.choose(_cut(consumer, batch, ends) if bounded else batch)
        if batch.num_rows:
            out.write(batch)
        if left is not None:
            left -= batch.num_rows


def _raise_if_deleted(consumer: Consumer, topics: tuple[str, ...]) -> None:
    """Raise UnknownTopicOrPartitionError if one of the topics was deleted, and the consumer's group
    has revoked its partitions: the group reads on without the topic, so the consumer raises no
    error."""
    for name in topics:
        known = consumer.core.cluster.view.topics.get(name)
        is_missing = known is None or isinstance(known.error, UnknownTopicOrPartitionError)
        if is_missing and all(tp.topic != name for tp in consumer.assignment()):
            raise deleted_topic(name)


def _is_read(consumer: Consumer, ends: dict[TopicPartition, int]) -> bool:
    """Return whether the consumer has read all its partitions to the end offsets ``ends``, with no
    rebalance pending. Also pause each partition that is read to its end offset."""
    # Read ``is_settled`` before the assignment. In the other order, a rebalance could end between
    # the two reads, and the old assignment would count as settled.
    is_settled = consumer.is_settled
    tps = [tp for tp in consumer.assignment() if tp in ends]
    done = [tp for tp in tps if consumer.position(tp) >= ends[tp]]
    paused = set(consumer.paused())
    for tp in done:
        if tp not in paused:
            consumer.pause(tp)
    return is_settled and len(done) == len(tps)


def _cut(consumer: Consumer, batch: Any, ends: dict[TopicPartition, int]) -> Any:
    """Return the batch without records at or after the end offsets ``ends``. Seek back to these end
    offsets, so that the group commits no later offset."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    from broker_lite.client.arrays import scalar_of
    from broker_lite.record.arrays import fixed

    mine = set(consumer.assignment())
    for tp, end in ends.items():
        if tp not in mine or consumer.position(tp) <= end:
            continue
        consumer.seek(tp.topic, tp.partition, end)
        number, limit = fixed(np.array([tp.partition, end]), pa.int64())
        of_it = pc.and_(
            pc.equal(batch.column("topic"), scalar_of(tp.topic.encode(), pa.string())),
            pc.equal(batch.column("partition"), number),
        )
        batch = batch.filter(
            pc.invert(pc.and_(of_it, pc.greater_equal(batch.column("offset"), limit)))
        )
    return batch
