"""Changing a setting while the controller is dead: a retriable error, and then it works."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from plain_connection import PlainConnection

from broker_lite.errors import error_for
from broker_lite.local.cluster import LocalCluster
from broker_lite.wire.calls.cluster import MetadataRequest
from broker_lite.wire.calls.configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from broker_lite.wire.calls.topics import CreatableTopic, CreateTopicsRequest

pytestmark = pytest.mark.real

WAIT_S = 40.0


def test_settings_change_again_once_there_is_a_controller(
    make_cluster: Callable[..., LocalCluster],
) -> None:
    cluster = make_cluster(2, config={"zookeeper.session.timeout.ms": "2000"})
    with PlainConnection(cluster.brokers[0].endpoint) as first:
        controller_id = first.call(MetadataRequest(())).controller_id
    (controller,) = [broker for broker in cluster.brokers if broker.id == controller_id]
    (other,) = [broker for broker in cluster.brokers if broker.id != controller_id]
    with PlainConnection(controller.endpoint) as connection:
        made = connection.call(CreateTopicsRequest((CreatableTopic("t", 1, 1),)))
        assert made.topics[0].error_code == 0
    controller.kill()
    row = AlterConfigsResource(2, "t", (AlterableConfig("retention.ms", 0, "9000"),))
    codes = []
    deadline = time.monotonic() + WAIT_S
    with PlainConnection(other.endpoint) as connection:
        while not codes or codes[-1]:
            assert time.monotonic() < deadline, codes
            answer = connection.call(IncrementalAlterConfigsRequest((row,)))
            codes.append(answer.responses[0].error_code)
            time.sleep(0.05)
    refused = {code for code in codes if code}
    assert all(error_for(code).retriable for code in refused), refused
