"""Names of log events, so that searches over JSON logs do not depend on the wording of messages.

``logger.info("…", extra=log_event("isr_changed", tp=replica))`` gives a line the name of an event
and its partition, topic or group, which ``json_log`` writes as fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

EVENTS: Mapping[str, str] = {
    "accept_failed": "The operating system refuses to accept connections.",
    "broker_drained": "Other brokers lead the partitions of the stopping broker.",
    "broker_fenced": "The broker must stop because another broker took its id or directory.",
    "broker_reachable": "A suspected broker is reachable again.",
    "broker_registered": "The broker is registered in ZooKeeper.",
    "broker_started": "The broker serves clients.",
    "broker_suspected": "Another broker refuses connections and is suspected to be dead.",
    "certificate_ends": "A listener's certificate ends within 30 days.",
    "certificate_rejected": "Changed TLS files are unusable; the former files stay in use.",
    "certificate_reloaded": "A listener uses changed TLS files.",
    "connection_refused": "A connection above a limit was closed.",
    "controller_deposed": "The controller is suspected to be dead; another one is elected.",
    "controller_elected": "The broker is the controller.",
    "controller_resigned": "The broker is no longer the controller.",
    "corrupt_batch": "A batch has a wrong checksum.",
    "delete_records_failed": "Records could not be deleted.",
    "deregistration_failed": "The registration could not be removed before the stop.",
    "descriptors_unavailable": "The socket that hands out segment files could not be opened.",
    "disk_failed": "The data directory failed; its partitions are offline.",
    "disk_free": "The data directory has space again.",
    "disk_full": "The data directory is full; the broker refuses records.",
    "drain_failed": "Other brokers did not take over the stopping broker's partitions.",
    "group_coordinated": "The broker coordinates a group.",
    "group_expired": "An empty group was deleted after its retention time.",
    "group_generation": "A group began a generation.",
    "group_given_up": "The broker no longer coordinates a group.",
    "hanging_transaction_ended": "A leader ended a transaction that no coordinator would end.",
    "hanging_transaction_unanswered": "A transaction may hang; coordinators have not answered.",
    "housekeeping_failed": "A periodic task failed; it is retried.",
    "isr_changed": "A partition's in-sync replicas changed.",
    "isr_write_failed": "A change of in-sync replicas could not be written; the write is retried.",
    "log_create_failed": "The log of a new replica could not be created.",
    "log_end_repaired": "Unusable bytes at the end of a log were cut off.",
    "login_failed": "A login was refused.",
    "logs_opened": "The broker opened its logs at start.",
    "peer_connected": "The connection to another broker is open again.",
    "peer_lost": "The connection to another broker closed.",
    "replica_append_failed": "A follower could not append records of its leader.",
    "replica_deleted": "A replica is being deleted.",
    "replica_restarted": "A follower's log restarts at its leader's log start offset.",
    "replica_role": "A replica became leader or follower.",
    "replica_set_aside": "A log became stray: it was reassigned while the broker was down.",
    "request_denied": "An ACL denied a request.",
    "retention_failed": "Retention could not delete segments.",
    "segments_deleted": "Retention deleted segments.",
    "state_load_failed": "A coordinator's state could not be read; the read is retried.",
    "state_loaded": "A coordinator's state was read from its log.",
    "stray_logs": "Logs belong to topics that do not exist in ZooKeeper.",
    "tls_handshake_failed": "A TLS handshake failed.",
    "token_keys_unreadable": "The keys of the access-token issuer could not be read.",
    "topic_setting_invalid": "A topic has an invalid setting; its retention is off.",
    "topics_created": "Topics were created because a client asked for them.",
    "transaction_coordinator_started": "The broker coordinates part of the transactions.",
    "transaction_timed_out": "A transaction timed out and is aborted.",
    "transactional_id_unreadable": "The state of a transactional id could not be read.",
    "unclean_leader": "An out-of-sync replica leads; acknowledged records are lost.",
    "zookeeper_unreachable": "ZooKeeper does not answer.",
}
"""All log events by name, each with its meaning."""


class HasPartition(Protocol):
    """An object with a topic and a partition, such as a replica or a topic partition."""

    @property
    def topic(self) -> str: ...

    @property
    def partition(self) -> int: ...


def log_event(
    name: str,
    *,
    tp: HasPartition | None = None,
    topic: str | None = None,
    group: str | None = None,
    about: str | None = None,
) -> dict[str, Any]:
    """Return the ``extra`` argument of a log statement: the event's name and its fields.

    ``RepeatLimit`` treats lines with equal ``about`` as repetitions of one line. Raises KeyError
    for a name that ``EVENTS`` does not declare."""
    EVENTS[name]
    fields: dict[str, Any] = {"event": name}
    if tp is not None:
        fields |= {"topic": tp.topic, "partition": tp.partition}
    for key, value in (("topic", topic), ("group", group), ("about", about)):
        if value is not None:
            fields[key] = value
    return fields
