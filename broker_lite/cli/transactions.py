"""``logbus transactions``: open transactions, and those that hold back readers."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from broker_lite.cli import output
from broker_lite.cli.change import ChangeOptions, change_options
from broker_lite.cli.completion import TOPIC
from broker_lite.cli.context import cluster_options, found_topic, open_admin
from broker_lite.cli.contexts import ChosenCluster
from broker_lite.cli.nouns import Noun
from broker_lite.cli.numbers import Whole
from broker_lite.client.administration import transactions as found
from broker_lite.errors import InvalidRequestError, InvalidTxnStateError

if TYPE_CHECKING:
    from broker_lite.client.administration.admin import Admin
    from broker_lite.model import TopicPartition

IDLE_S = 900
"""Default of ``hanging --idle`` in seconds: the brokers' default of transaction.max.timeout.ms."""


@click.group(cls=Noun)
def transactions() -> None:
    """List open and hanging transactions; describe one, or end a hanging one.

    \b
    Examples:
      logbus transactions list --open
      logbus transactions hanging
      logbus transactions describe etl-1
    """


@transactions.command("list")
@click.option("--open", "only_open", is_flag=True, help="Only ids with an open transaction.")
@cluster_options
@output.output_option
def list_transactions(only_open: bool, cluster: ChosenCluster, form: str | None) -> None:
    """List transactional ids.

    STATE: Ongoing is open; in Prepare…, commit or abort is decided, and the markers are being
    written; Complete… and Empty are not open.

    \b
    Examples:
      logbus transactions list
      logbus transactions list --open -o json
    """
    with open_admin(cluster) as admin:
        rows = [
            {
                "id": row.transactional_id,
                "state": row.state,
                "producer": row.producer_id,
                "coordinator": row.coordinator,
            }
            for row in admin.run(found.list_transactions)
            if not only_open or row.state in found.OPEN_STATES
        ]
    output.show(rows, form)
    if not rows:
        output.say("no transaction is open" if only_open else "there is no transactional id")


@transactions.command()
@click.argument("transactional_id")
@cluster_options
@output.output_option
def describe(transactional_id: str, cluster: ChosenCluster, form: str | None) -> None:
    """Show a transactional id: state, producer, age and partitions.

    \b
    Examples:
      logbus transactions describe etl-1
      logbus transactions describe etl-1 -o json
    """
    with open_admin(cluster) as admin:
        row = admin.run(found.describe_transaction, transactional_id)
    age_s = round(time.time() - row.start_ms / 1000, 1) if row.start_ms >= 0 else None
    shown = {
        "id": row.transactional_id,
        "state": row.state,
        "producer": row.producer_id,
        "epoch": row.producer_epoch,
        "timeout_ms": row.timeout_ms,
        "age_s": age_s,
        "partitions": ", ".join(map(str, row.partitions)),
    }
    output.show([shown], form)


@transactions.command()
@click.option(
    "-t", "--topic", "topics", type=TOPIC, multiple=True, help="Only these topics. Default: all."
)
@click.option(
    "--idle",
    "idle_s",
    type=Whole(0),
    default=IDLE_S,
    show_default=True,
    help="Seconds since the transaction's last batch. Keep it above transaction.max.timeout.ms.",
)
@cluster_options
@output.output_option
def hanging(topics: tuple[str, ...], idle_s: int, cluster: ChosenCluster, form: str | None) -> None:
    """Find transactions that no coordinator will end.

    Each holds back the last stable offset of its partition: consumers with read_committed stop
    there. OUTCOME is what 'logbus transactions abort' writes to end it.

    \b
    Examples:
      logbus transactions hanging
      logbus transactions hanging -t events --idle 3600
    """
    with open_admin(cluster) as admin:
        tps = _partitions(admin, topics)
        before_ms = int((time.time() - idle_s) * 1000)
        rows = admin.run(found.hanging, tps, before_ms)
    output.show([_row(row) for row in rows], form)
    if not rows:
        output.say(f"no transaction hangs in {len(tps)} partitions")


@transactions.command()
@click.argument("topic", type=TOPIC)
@click.argument("partition", type=Whole(0))
@click.option(
    "--start-offset",
    type=Whole(0),
    required=True,
    help="Offset of the transaction's first batch in the partition, as 'hanging' shows it.",
)
@click.option("--force", is_flag=True, help="End also a transaction that its coordinator will end.")
@change_options
@cluster_options
@output.output_option
def abort(
    topic: str,
    partition: int,
    start_offset: int,
    force: bool,
    change: ChangeOptions,
    cluster: ChosenCluster,
    form: str | None,
) -> None:
    """End a hanging transaction in one partition, by an abort or a commit marker.

    If the transaction's coordinator knows that it was committed, the command writes a commit
    marker: its records in this partition become visible. Otherwise it writes an abort marker: they
    become invisible for ever. The coordinator is not involved: with --force, the transaction may
    still commit in its other partitions.

    \b
    Examples:
      logbus transactions abort events 0 --start-offset 1500 --dry-run
      logbus transactions abort events 0 --start-offset 1500 --yes
    """
    with open_admin(cluster) as admin:
        tps = _partitions(admin, (topic,))
        if partition >= len(tps):
            raise InvalidRequestError(
                f"topic {topic!r} has {len(tps)} partitions, numbered from 0; choose one"
            )
        tp = tps[partition]
        holder = admin.run(found.open_at, tp, start_offset)
        owner = holder.owner
        if owner is not None and not holder.is_hanging and not force:
            raise InvalidTxnStateError(
                f"the transaction of id {owner.transactional_id!r} in {tp} does not hang: its "
                f"coordinator ends it after {owner.timeout_ms} ms. Stop its producer, or give "
                "--force"
            )
        output.show([_row(holder)], form)
        if holder.is_commit:
            question = (
                "Commit this transaction, as its coordinator has? Its records in "
                f"{tp} become visible."
            )
            done = "the transaction was committed, as at its coordinator"
        else:
            question = f"Abort this transaction? Its records in {tp} become invisible for ever."
            done = "the transaction was aborted"
        if change.is_wanted(question):
            admin.run(found.end, holder)
            output.say(done)


def _partitions(admin: Admin, topics: tuple[str, ...]) -> list[TopicPartition]:
    view = admin.cluster()
    names = [found_topic(view, name).name for name in topics] or sorted(view.topics)
    return [tp for name in names for tp in view.partitions_of(name)]


def _row(holder: found.Holder) -> dict[str, Any]:
    row = holder.row
    return {
        "topic": row.tp.topic,
        "partition": row.tp.partition,
        "start_offset": row.start_offset,
        "producer": row.producer_id,
        "epoch": row.producer_epoch,
        "idle_s": round(time.time() - row.last_append_ms / 1000, 1),
        "outcome": holder.outcome,
    }
