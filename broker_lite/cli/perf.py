"""``logbus perf``: measure the throughput and latency of a cluster from this machine.

A run creates a topic and deletes it at the end, unless the user names a topic. A produced record
counts once it is acknowledged."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import click

from broker_lite.cli import output
from broker_lite.cli.completion import TOPIC
from broker_lite.cli.context import (
    bootstrap,
    cluster_options,
    found_topic,
    key_values,
    settings_option,
)
from broker_lite.cli.contexts import ChosenCluster
from broker_lite.cli.numbers import Whole
from broker_lite.errors import RequestTimedOutError

F = TypeVar("F", bound=Callable[..., Any])

_ARROW_ROWS = 20_000
"""Maximum rows of each Arrow table that is sent."""
_ARROW_BYTES = 16 << 20
"""Maximum bytes of the values of an Arrow table. A longer value is sent as a table of one row."""
_SILENCE_SECONDS = 30.0
"""Seconds without a record after which ``perf consume`` fails."""


_partitions_option = click.option(
    "-p",
    "--partitions",
    type=Whole(1),
    default=4,
    show_default=True,
    help="Partitions of a new topic.",
)
_size_option = click.option(
    "--size", type=Whole(0), default=100, show_default=True, help="Bytes of a value."
)


def _records_option(default: int) -> Callable[[F], F]:
    return click.option(
        "-n",
        "--records",
        type=Whole(1),
        default=default,
        show_default=True,
        help="Number of records.",
    )


@click.group()
def perf() -> None:
    """Measure producing, consuming and latency.

    \b
    Examples:
      logbus perf produce -n 100000
      logbus perf consume
      logbus perf latency
    """


@perf.command()
@click.option(
    "-t",
    "--topic",
    type=TOPIC,
    help="Write to this topic. Default: a new one, deleted afterwards.",
)
@_partitions_option
@_records_option(1_000_000)
@_size_option
@click.option("--api", default="arrow", type=click.Choice(("arrow", "send")), show_default=True)
@click.option("--acks", default="all", type=click.Choice(("all", "1", "0")), show_default=True)
@click.option("-z", "--compression", default="none", type=click.Choice(("none", "lz4", "zstd")))
@settings_option
@cluster_options
@output.output_option
def produce(
    topic: str | None,
    partitions: int,
    records: int,
    size: int,
    api: str,
    acks: str,
    compression: str,
    settings: tuple[str, ...],
    cluster: ChosenCluster,
    form: str | None,
) -> None:
    """Measure how many records a second this machine writes to a topic, with send_arrow or send.

    \b
    Examples:
      logbus perf produce
      logbus perf produce -n 100000 --size 1000 --api send
      logbus perf produce -z lz4 --acks 1
    """
    load = _Load(records, size, api, acks, compression, key_values(settings, "-X"))
    servers = bootstrap(cluster)
    with _topic(servers, topic, partitions) as name:
        seconds = _produce(servers, name, load)
    facts = {"test": "produce", "api": api, "acks": acks, "compression": compression}
    output.show_one(facts | _rates(records, size, seconds), form)


@perf.command()
@click.option(
    "-t", "--topic", type=TOPIC, help="Read this topic. Default: a new one, filled and deleted."
)
@_partitions_option
@_records_option(1_000_000)
@_size_option
@click.option("--api", default="arrow", type=click.Choice(("arrow", "records")), show_default=True)
@settings_option
@cluster_options
@output.output_option
def consume(
    topic: str | None,
    partitions: int,
    records: int,
    size: int,
    api: str,
    settings: tuple[str, ...],
    cluster: ChosenCluster,
    form: str | None,
) -> None:
    """Measure how many records a second this machine reads, with poll_arrow or poll.

    \b
    Examples:
      logbus perf consume
      logbus perf consume -t events -n 100000 --api records
    """
    servers = bootstrap(cluster)
    with _topic(servers, topic, partitions) as name:
        if topic is None:
            _produce(servers, name, _Load(records, size))
        reads = {"start": "earliest"} | key_values(settings, "-X")
        seconds, size_bytes = _consume(servers, name, records, api, reads)
    facts = {"test": "consume", "api": api}
    output.show_one(facts | _rates(records, size_bytes / records, seconds), form)


@perf.command()
@_records_option(1000)
@_size_option
@cluster_options
@output.output_option
def latency(records: int, size: int, cluster: ChosenCluster, form: str | None) -> None:
    """Measure milliseconds from send to receipt, one record at a time.

    \b
    Examples:
      logbus perf latency
      logbus perf latency -n 5000 --size 1000
    """
    servers = bootstrap(cluster)
    with _topic(servers, None, 1) as name:
        times = sorted(_round_trips(servers, name, records, size))
    shown = {f"p{p}_ms": round(times[int(len(times) * p / 100)] * 1000, 3) for p in (50, 95, 99)}
    output.show_one({"test": "latency", "records": records, "size": size} | shown, form)


class _Load(NamedTuple):
    """The records to produce: their number, the bytes of each value, the method of the producer,
    and its settings."""

    records: int
    size: int
    api: str = "arrow"
    acks: str = "all"
    compression: str = "none"
    settings: Mapping[str, str] = {}


def _rates(records: int, size: float, seconds: float) -> dict[str, Any]:
    return {
        "records": records,
        "size": round(size),
        "seconds": round(seconds, 3),
        "records_per_s": round(records / seconds),
        "mb_per_s": round(records * size / seconds / 1e6, 1),
    }


@contextmanager
def _topic(servers: str, named: str | None, partitions: int) -> Iterator[str]:
    from broker_lite.client.administration.admin import Admin

    with Admin(servers, client_id="logbus-perf") as admin:
        if named is not None:
            yield found_topic(admin.cluster(), named).name
            return
        name = f"perf-{uuid.uuid4().hex[:12]}"
        admin.create_topic(name, partitions)
        try:
            yield name
        finally:
            admin.delete_topic(name)


def _produce(servers: str, topic: str, load: _Load) -> float:
    """Produce the load and return the seconds until it is acknowledged."""
    import pyarrow as pa

    from broker_lite.client.arrays import binary_of
    from broker_lite.client.options import build
    from broker_lite.client.producing.producer import Producer
    from broker_lite.config import ProducerConfig

    records = load.records
    options = {"acks": load.acks, "compression": load.compression}
    config = build(ProducerConfig, load.settings, options)
    value = (b"0123456789abcdef" * (load.size // 16 + 1))[: load.size]
    rows = max(1, min(_ARROW_ROWS, records, _ARROW_BYTES // max(load.size, 1)))
    table = pa.table({"value": binary_of([value] * rows)})
    with _bar() as bar, Producer(servers, config) as producer:
        started = time.monotonic()
        for first in range(0, records, rows):
            count = min(rows, records - first)
            if load.api == "arrow":
                producer.send_arrow(topic, table.slice(0, count))
            else:
                for _ in range(count):
                    producer.send(topic, value)
            bar.advance(count, records - first - count)
        producer.flush()
        return time.monotonic() - started


def _bar() -> output.ProgressBar:
    return output.ProgressBar("records", is_alone=True)


def _consume(
    servers: str, topic: str, records: int, api: str, settings: dict[str, str]
) -> tuple[float, int]:
    import pyarrow.compute as pc

    from broker_lite.client.consuming.consumer import Consumer
    from broker_lite.client.options import build
    from broker_lite.config import ConsumerConfig

    got = size = 0
    config = build(ConsumerConfig, settings, {})
    with _bar() as bar, Consumer(servers, [topic], config=config) as consumer:
        started = last = time.monotonic()
        while got < records:
            if api == "arrow":
                batch = consumer.poll_arrow(1.0, max_rows=records - got)
                count = batch.num_rows
                size += pc.sum(pc.binary_length(batch.column("value"))).as_py() or 0
            else:
                listed = consumer.poll(1.0, max_records=records - got)
                count = len(listed)
                size += sum(len(record.value or b"") for record in listed)
            got += count
            bar.advance(count, records - got)
            now = time.monotonic()
            if count:
                last = now
            elif now - last > _SILENCE_SECONDS:
                raise RequestTimedOutError(
                    f"received {got} of {records} records of topic {topic!r}, then none for "
                    f"{_SILENCE_SECONDS:.0f} s; set --records to at most the topic's records"
                )
        return time.monotonic() - started, size


def _round_trips(servers: str, topic: str, records: int, size: int) -> list[float]:
    from broker_lite.client.consuming.consumer import Consumer
    from broker_lite.client.producing.producer import Producer
    from broker_lite.config import ConsumerConfig, ProducerConfig

    value, times = b"x" * size, []
    with (
        _bar() as bar,
        Producer(servers, ProducerConfig(linger_ms=0)) as producer,
        Consumer(servers, [topic], config=ConsumerConfig(start="earliest")) as consumer,
    ):
        for number in range(records + 20):
            started = time.perf_counter()
            producer.send(topic, value)
            while not consumer.poll(1.0):
                pass
            # Do not count the first 20 records, which connect, fetch metadata and fill caches.
            if number >= 20:
                times.append(time.perf_counter() - started)
                bar.advance(1, records - len(times))
    return times
