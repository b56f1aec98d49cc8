"""What Python's clients of Kafka can ask and logbus does not do: told in Kafka's own words, at
once, and the same client goes on."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import confluent_kafka
import confluent_kafka.admin as confluent_admin
import kafka
import kafka.admin
import kafka.errors
import pytest
from client_programs import Note
from confluent_kafka import KafkaError

from broker_lite.bus import Bus
from broker_lite.local.cluster import LocalCluster

pytestmark = pytest.mark.real

WAIT_S = 30.0
REFUSED = "refused: UnsupportedVersion"


@pytest.fixture
def topic(bus: Bus) -> str:
    name = f"refusals-{os.getpid()}"
    bus.create_topic(name, partitions=1, if_not_exists=True)
    return name


def result(futures: Any) -> object:
    """Of one of librdkafka's futures, or of the only one in a table."""
    future = next(iter(futures.values())) if isinstance(futures, dict) else futures
    return future.result(WAIT_S)


def test_librdkafka_learns_that_there_is_no_authorizer(
    cluster: LocalCluster, topic: str, answered: Note, versions: dict[str, str]
) -> None:
    admin = confluent_admin.AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    kind, pattern = confluent_admin.ResourceType, confluent_admin.ResourcePatternType
    allowed = (confluent_admin.AclOperation.READ, confluent_admin.AclPermissionType.ALLOW)
    acl = confluent_admin.AclBinding(kind.TOPIC, topic, pattern.LITERAL, "User:a", "*", *allowed)
    which = confluent_admin.AclBindingFilter(kind.TOPIC, topic, pattern.ANY, None, None, *allowed)
    asked: dict[str, Callable[[], Any]] = {
        "create_acls": lambda: admin.create_acls([acl]),
        "delete_acls": lambda: admin.delete_acls([which]),
    }
    for name, ask in asked.items():
        with pytest.raises(confluent_kafka.KafkaException) as refused:
            result(ask())
        assert refused.value.args[0].code() == KafkaError.SECURITY_DISABLED, name
    assert len(admin.describe_cluster().result(WAIT_S).nodes) == 3
    answered(versions["librdkafka"], ", ".join(asked), REFUSED)


def test_kafka_python_unserved_administration_is_refused(
    cluster: LocalCluster, topic: str, answered: Note, versions: dict[str, str]
) -> None:
    admin = kafka.admin.KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers)
    every = kafka.admin.ACLFilter(None, None, kafka.admin.ACLOperation.ANY,
                                  kafka.admin.ACLPermissionType.ANY,
                                  kafka.admin.ResourcePatternFilter(
                                      kafka.admin.ResourceType.ANY, None,
                                      kafka.admin.ACLResourcePatternType.ANY))  # fmt: skip
    asked: dict[str, Callable[[], Any]] = {
        "describe_acls": lambda: admin.describe_acls(every),
        "describe_metadata_quorum": admin.describe_metadata_quorum,
    }
    for name, ask in asked.items():
        with pytest.raises(
            (
                kafka.errors.IncompatibleBrokerVersion,
                kafka.errors.UnsupportedVersionError,
                kafka.errors.SecurityDisabledError,
            )
        ):
            pytest.fail(f"{name}: {ask()}")
    assert len(admin.describe_cluster()["brokers"]) == 3
    admin.close()
    answered(versions["kafka-python"], ", ".join(asked), REFUSED)
