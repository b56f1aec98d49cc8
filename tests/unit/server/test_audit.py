"""Tests of the audit log's file: its permissions, rotation, lines and errors."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sim import scheduler
from support.access_world import NAMES, AccessWorld, Reply
from support.api_frames import request_frame

from broker_lite.errors import InvalidConfigError
from broker_lite.metadata.cache import MetadataSnapshot
from broker_lite.model import ScramMechanism
from broker_lite.security.scram import ScramClient
from broker_lite.server import audit
from broker_lite.server.audit import CHANGES, AuditLog
from broker_lite.server.dispatch import Dispatcher
from broker_lite.server.network.access import ROWS
from broker_lite.server.network.context import Session
from broker_lite.server.network.logins import Logins
from broker_lite.wire.api import ApiKey

SHA_256 = ScramMechanism.SHA_256


def test_audit_log_writes_its_lines_to_a_private_file(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    log = AuditLog(str(path))
    log.write("login", user="User:alice", host="10.0.0.7")
    log.write("denied", ("alice", "t"), user="User:alice")
    log.write("denied", ("alice", "t"), user="User:alice")
    log.close()
    log.write("login", user="User:late")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["event"] for row in rows] == ["login", "denied"]
    assert path.stat().st_mode & 0o777 == 0o600


def test_audit_log_file_that_reached_its_size_limit_is_renamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "FILE_BYTES_MAX", 500)
    path = tmp_path / "audit.log"
    log = AuditLog(str(path))
    for number in range(20):
        log.write("login", user=f"User:{number}")
    log.close()
    files = sorted(tmp_path.iterdir())
    assert 1 < len(files) <= audit.FILES_KEPT + 1
    assert all(each.stat().st_size <= 500 for each in files)
    assert {each.stat().st_mode & 0o777 for each in files} == {0o600}


def test_error_for_an_unwritable_audit_log_names_the_setting(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match=r"audit\.log=.*missing/audit\.log"):
        AuditLog(str(tmp_path / "missing" / "audit.log"))


def test_audit_log_without_a_path_writes_nothing() -> None:
    log = AuditLog()
    log.write("login", user="User:alice")
    log.close()
    assert not log.is_on


def test_every_api_in_the_table_of_audited_apis_is_served() -> None:
    assert CHANGES.keys() <= ROWS.keys()


def test_audit_log_names_group_and_partition_of_deleted_offsets() -> None:
    rows = [SimpleNamespace(partition_index=3, error_code=0)]
    message: Any = SimpleNamespace(group_id="readers")
    response: Any = SimpleNamespace(
        error_code=0, topics=[SimpleNamespace(name="events", partitions=rows)]
    )
    found = CHANGES[ApiKey.OFFSET_DELETE](message, response, MetadataSnapshot())
    assert [change.object for change in found] == ["offset of group readers in events-3"]


def test_audit_log_contains_changed_acls_in_words() -> None:
    numbers = {
        "resource_type": 2,
        "resource_pattern_type": 4,
        "resource_name": "orders.",
        "principal": "User:alice",
        "host": "*",
        "operation": 3,
        "permission_type": 3,
    }
    message: Any = SimpleNamespace(
        creations=[SimpleNamespace(**numbers), SimpleNamespace(**numbers | {"operation": 99})]
    )
    response: Any = SimpleNamespace(
        results=[SimpleNamespace(error_code=0), SimpleNamespace(error_code=42)]
    )
    found = list(CHANGES[ApiKey.CREATE_ACLS](message, response, MetadataSnapshot()))
    assert found[0].after == "allow User:alice to read topic prefix 'orders.'"
    assert "99" in found[1].after and found[1].code == 42
    row = SimpleNamespace(**numbers, pattern_type=4, error_code=0)
    answer: Any = SimpleNamespace(filter_results=[SimpleNamespace(matching_acls=[row])])
    [deleted] = CHANGES[ApiKey.DELETE_ACLS](None, answer, MetadataSnapshot())
    assert deleted.before == found[0].after


def test_audit_log_contains_transactions_that_an_administrator_ends() -> None:
    message: Any = SimpleNamespace(
        markers=[SimpleNamespace(producer_id=7, transaction_result=False)]
    )
    partition = SimpleNamespace(partition_index=3, error_code=0)
    topic = SimpleNamespace(name="events", partitions=[partition])
    response: Any = SimpleNamespace(markers=[SimpleNamespace(topics=[topic])])
    [found] = CHANGES[ApiKey.WRITE_TXN_MARKERS](message, response, MetadataSnapshot())
    assert found.object == "partition events-3"
    assert found.after == {"producer_id": 7, "transaction": "abort"}


def test_audit_log_records_failed_logins_of_a_client_once_in_ten_seconds(tmp_path: Path) -> None:
    """Without this limit, a client that guesses passwords could fill the log, and rotation would
    delete all other lines."""
    path = tmp_path / "audit.log"

    async def body() -> None:
        world = await AccessWorld().start()
        log = AuditLog(str(path), world.parts.clock)
        logins = Logins((SHA_256,), clock=world.parts.clock, salt_key=b"k")
        parts = dataclasses.replace(world.parts, audit=log, logins=logins)
        dispatcher = Dispatcher(world.cluster.loop, parts)
        for user in ("alice", "alice", "bob", "alice"):
            session = Session(1, "10.0.0.9:4711", takes_logins=True, needs_login=True)
            first = ScramClient(SHA_256, user, "guess", "nonce").first()
            for frame in (
                request_frame(ApiKey.SASL_HANDSHAKE, 1, NAMES, {"mechanism": SHA_256}),
                request_frame(ApiKey.SASL_AUTHENTICATE, 0, NAMES, {"auth_bytes": first}),
                request_frame(ApiKey.SASL_AUTHENTICATE, 0, NAMES, {"auth_bytes": b"x"}),
            ):
                reply: Any = Reply(session)
                dispatcher.begin(memoryview(bytearray(frame)), reply)
                await reply.done
        log.close()

    scheduler.run(body())
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    assert [line["user"] for line in lines] == ["User:alice", "User:bob"]
    assert {line["event"] for line in lines} == {"login_failed"}
