"""With Python clients, request features that logbus lacks.

Each request must get Kafka's own error at once, and the client must still work afterwards.
"""

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
from confluent_kafka import KafkaError
from support.client_programs import Note

from broker_lite.bus import Bus
from broker_lite.local.cluster import LocalCluster

pytestmark = pytest.mark.real

WAIT_S = 30.0
NO_AUTHORIZER = "refused: SecurityDisabled"


@pytest.fixture
def topic(bus: Bus) -> str:
    name = f"refusals-{os.getpid()}"
    bus.create_topic(name, partitions=1, if_not_exists=True)
    return name


def result(futures: Any) -> object:
    """Return the result of a librdkafka future, or of the future in a dictionary with one entry."""
    future = next(iter(futures.values())) if isinstance(futures, dict) else futures
    return future.result(WAIT_S)


def test_librdkafka_gets_an_error_for_acls_without_an_authorizer(
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
    answered(versions["librdkafka"], f"{', '.join(asked)} without an authorizer", NO_AUTHORIZER)


def test_kafka_python_gets_an_error_for_unsupported_admin_requests(
    cluster: LocalCluster, topic: str, answered: Note, versions: dict[str, str]
) -> None:
    admin = kafka.admin.KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers)
    every = kafka.admin.ACLFilter(None, None, kafka.admin.ACLOperation.ANY,
                                  kafka.admin.ACLPermissionType.ANY,
                                  kafka.admin.ResourcePatternFilter(
                                      kafka.admin.ResourceType.ANY, None,
                                      kafka.admin.ACLResourcePatternType.ANY))  # fmt: skip
    with pytest.raises(kafka.errors.SecurityDisabledError):
        admin.describe_acls(every)
    answered(versions["kafka-python"], "describe_acls without an authorizer", NO_AUTHORIZER)
    with pytest.raises(
        (kafka.errors.IncompatibleBrokerVersion, kafka.errors.UnsupportedVersionError)
    ):
        admin.describe_metadata_quorum()
    answered(versions["kafka-python"], "describe_metadata_quorum", "refused: UnsupportedVersion")
    assert len(admin.describe_cluster()["brokers"]) == 3
    admin.close()
