"""Blocking reads of a cluster's metadata from ZooKeeper, for programs without an event loop."""

from __future__ import annotations

import contextlib

from kazoo.exceptions import NoNodeError

from broker_lite.metadata import znodes
from broker_lite.metadata.zookeeper.connection import children, connected
from broker_lite.model import CommittedOffset, Endpoint, TopicPartition


def read_brokers(address: str, *, timeout_s: float = 10.0) -> list[Endpoint]:
    """Return the addresses of a cluster's live brokers, in order of broker id, from ZooKeeper.

    The function blocks. Raises CoordinationUnavailableError if ZooKeeper does not answer within
    ``timeout_s``."""
    with connected(address, timeout_s) as (client, chroot):
        endpoints = []
        for name in sorted(children(client, chroot + znodes.BROKER_IDS), key=int):
            path = znodes.broker_path(int(name))
            with contextlib.suppress(NoNodeError):
                data, _ = client.get(chroot + path)
                endpoints.append(znodes.decode_registration(path, data).endpoint)
        return endpoints


def read_group_offsets(
    address: str, group: str, *, timeout_s: float = 10.0
) -> dict[TopicPartition, CommittedOffset]:
    """Return a group's committed offsets from ZooKeeper, without asking a broker.

    The function blocks. Raises CoordinationUnavailableError if ZooKeeper does not answer within
    ``timeout_s``."""
    with connected(address, timeout_s) as (client, chroot):
        offsets = {}
        for topic in children(client, chroot + znodes.offsets_path(group)):
            row = children(client, chroot + znodes.topic_offsets_path(group, topic))
            for partition in sorted(int(name) for name in row):
                path = znodes.offset_path(group, topic, partition)
                with contextlib.suppress(NoNodeError):
                    data, _ = client.get(chroot + path)
                    offsets[TopicPartition(topic, partition)] = znodes.decode_offset(path, data)
        return offsets
