"""Test sarama, unchanged and built with the user's Go; most log collectors in Go use sarama.

The tests use two versions of sarama: the newest, and the last version of its former owner, Shopify.
Each version runs without a configured Kafka version, and with the newest Kafka version that it
supports.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable

import pytest
from support.client_programs import GO_CODECS, Note, OwnNote, Steps, assert_go_reads_what_it_wrote

from broker_lite.local.cluster import LocalCluster

pytestmark = [pytest.mark.compat, pytest.mark.timeout(500)]

NUMBERS = itertools.count()
UNSUPPORTED = "kafka server: The version of API is not supported"

Variant = tuple[str, str]


@pytest.fixture(
    scope="module",
    params=itertools.product(("sarama", "old sarama"), ("default", "newest")),
    ids="-".join,
)
def variant(request: pytest.FixtureRequest) -> Variant:
    """Return the sarama version and the configured Kafka version."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def steps(cluster: LocalCluster, go_program: Callable[[str], str], variant: Variant) -> Steps:
    """Run the program go/sarama; return the result of each of its steps."""
    number = next(NUMBERS)
    topic, group = f"sarama-{os.getpid()}-{number}", f"sarama group {os.getpid()} {number}"
    client, newest = variant
    return Steps([go_program(client), "steps", cluster.bootstrap_servers, topic, group, newest])


@pytest.fixture
def note(answered: Note, versions: dict[str, str], variant: Variant) -> OwnNote:
    return lambda asked, answer: answered(versions[variant[0]], asked, answer)


def test_sarama_produces_reads_and_seeks(steps: Steps, note: OwnNote) -> None:
    assert_go_reads_what_it_wrote(steps)
    note(f"produce, idempotent, and consume by offset: {', '.join(GO_CODECS)}", "served")


def test_sarama_records_are_found_by_timestamp(steps: Steps, note: OwnNote) -> None:
    """The old version of sarama sets no maximum timestamp in batches, so the broker computes it
    from the records."""
    names = ("GetOffset newest", "GetOffset of a time", "GetOffset oldest")
    assert steps.answers(*names) == [10, 0, 3]
    note("offsets: newest, oldest, by time", "served")


def test_sarama_administers_topics(steps: Steps, variant: Variant, note: OwnNote) -> None:
    assert steps.answers("CreateTopic", "DescribeCluster") == [None, [3, True]]
    assert "already exists" in steps.error("CreateTopic again")
    changes = ("CreatePartitions", "AlterConfig", "DeleteRecords", "DeleteTopic")
    assert steps.answers(*changes) == [None] * 4
    note("admin: topics, partitions, configs, DeleteRecords", "served")
    if variant == ("old sarama", "default"):
        assert "this broker supports versions 1 to 4" in steps.error("DescribeConfig")
        note("DescribeConfig without config.Version", "refused: UnsupportedVersion")
    else:
        assert steps.answers("DescribeConfig") == [1]


def test_sarama_administers_groups(steps: Steps, variant: Variant, note: OwnNote) -> None:
    assert steps.answers("commit with a retention time") == [None]
    assert steps.answers("ListConsumerGroupOffsets") == [[7, "seven"]]
    assert steps.answers("ListConsumerGroups", "DescribeConsumerGroups") == [True, "Empty"]
    note("groups: commits with Consumer.Offsets.Retention; offsets, list, describe", "served")
    assert steps.answers("commit") == [None]
    note("commits without Consumer.Offsets.Retention", "served")


def test_sarama_gets_an_error_for_acls_without_an_authorizer(
    steps: Steps, variant: Variant, note: OwnNote
) -> None:
    """The old version of sarama ignores the response's error and returns an empty list."""
    if variant[0] == "sarama":
        assert "Security features are disabled" in steps.error("ListAcls")
    note("ListAcls without an authorizer", "refused: SecurityDisabled")
