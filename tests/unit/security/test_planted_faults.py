"""Tests that plant a security fault in a copy of the code and check that a test finds the fault.

``make fuzz`` runs them. ``make test`` checks only that the code and the test of each fault exist.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

import broker_lite

TESTS = Path(__file__).parents[2]
PACKAGE = Path(broker_lite.__file__).parent
NETWORK, SECURITY = "server/network/", "security/"


class Plant(NamedTuple):
    """A planted fault: with ``wrong`` in place of ``right`` in ``file``, ``test`` must fail.

    ``test`` is a pair of test file and function name.
    """

    file: str
    right: str
    wrong: str
    test: tuple[str, str]


ACCESS = "unit/server/network/test_access.py"
MATRIX = "unit/server/network/test_access_matrix.py"
LOGINS = "unit/server/network/test_logins.py"
TOKENS = "unit/security/test_tokens.py"
AUTHORIZER = "unit/security/test_authorizer.py"
DESCRIPTORS = "unit/server/test_descriptors.py"
TLS = "unit/server/network/test_tls_listener.py"

PLANTS = {
    "a fetch by topic id checks no permission": Plant(
        NETWORK + "access.py",
        "                name, shown = view.name, OF_THIS_ID\n",
        "                continue\n",
        (MATRIX, "test_request_with_insufficient_permissions_is_denied_and_changes_nothing"),
    ),
    "an Envelope on a listener of clients is opened": Plant(
        NETWORK + "access.py",
        "if session.listener != self._inter_broker or session.is_forwarded:",
        "if session.is_forwarded:",
        (ACCESS, "test_envelope_sent_by_a_client_or_inside_another_envelope_is_refused"),
    ),
    "an Envelope is authorized for the broker that sent it": Plant(
        "server/dispatch.py",
        "            principal=envelope.principal,\n",
        "",
        (ACCESS, "test_envelope_is_authorized_for_the_forwarded_client_not_for_the_broker"),
    ),
    "the nonce in a SCRAM proof is not compared": Plant(
        SECURITY + "scram_server.py",
        "                server.set_client_final(text)\n",
        "                server.set_client_final(_with_nonce(server, text))\n",
        ("unit/security/test_scram.py", "test_scram_proof_for_another_nonce_is_refused"),
    ),
    "an allowing ACL wins over a denial": Plant(
        SECURITY + "authorizer.py",
        "                        return Decision(False, Acl(pattern, entry))\n",
        "                        denied = True\n",
        (
            AUTHORIZER,
            "test_authorizer_index_decides_like_a_search_through_all_acls",
        ),
    ),
    "cached decisions survive a change of ACLs": Plant(
        SECURITY + "authorizer.py",
        "        return AclIndex(entries, super_users=self._super_users, "
        "allow_if_none=self._allow_if_none)\n",
        "        made = AclIndex(entries, super_users=self._super_users, "
        "allow_if_none=self._allow_if_none)\n        made._cache = self._cache\n"
        "        return made\n",
        (AUTHORIZER, "test_cached_decision_is_not_used_after_a_change_of_acls"),
    ),
    "a prefixed pattern is looked up as a literal one": Plant(
        SECURITY + "authorizer.py",
        "Pattern(kind, PatternType.PREFIXED, name[:length])",
        "Pattern(kind, PatternType.PREFIXED, name)",
        (
            AUTHORIZER,
            "test_authorizer_index_decides_like_a_search_through_all_acls",
        ),
    ),
    "a second login may change the user": Plant(
        NETWORK + "logins.py",
        "        if session.mechanism and (principal, mechanism) != ",
        "        if session.number < 0 and (principal, mechanism) != ",
        (LOGINS, "test_client_must_log_in_again_as_the_same_user_after_its_session_lifetime"),
    ),
    "the replica id of a follower is not compared": Plant(
        NETWORK + "access.py",
        "if self._authorizer.broker_id(self._session) not in (ANY_BROKER, replica_id):",
        "if self._authorizer.broker_id(self._session) is None:",
        (ACCESS, "test_broker_is_identified_by_its_principal_on_the_inter_broker_listener"),
    ),
    "the key of a shared pool lacks the credential": Plant(
        "client/transport/pool.py",
        "key = client_id, chosen",
        "key = client_id, chosen.username",
        (
            "unit/client/transport/test_shells.py",
            "test_connection_pool_is_shared_only_by_clients_with_the_same_credential",
        ),
    ),
    "a reload takes a wrong key": Plant(
        NETWORK + "tls_listener.py",
        "            context = self._checked_context()\n",
        "            context = _unchecked(self._tls)\n",
        (
            TLS,
            "test_listener_keeps_its_certificate_if_the_changed_key_is_not_the_key_of_the_certificate",
        ),
    ),
    "a reload fails for unusable files": Plant(
        NETWORK + "tls_listener.py",
        "            return False\n",
        "            raise\n",
        (
            TLS,
            "test_listener_uses_changed_certificate_files_only_if_they_are_valid",
        ),
    ),
    "sessions of a deleted user continue": Plant(
        NETWORK + "logins.py",
        "            elif session.key is not None and not self._has_key(session):\n",
        "            elif False:\n",
        (LOGINS, "test_connection_of_a_deleted_user_is_closed"),
    ),
    "a session keeps cached permissions after a change of ACLs": Plant(
        NETWORK + "access.py",
        "            self._mark is not self._authorizer.index.mark\n",
        "            self._allowed is None\n",
        (ACCESS, "test_cached_permissions_are_not_used_for_other_acls_users_or_operations"),
    ),
    "a ticket for a file can be used again": Plant(
        SECURITY + "tickets.py",
        "        ticket = self._remove(secret)\n        if ticket is None or",
        "        ticket = self._tickets.get(secret)\n        if ticket is None or",
        (
            DESCRIPTORS,
            "test_broker_sends_a_read_only_file_descriptor_and_refuses_a_repeated_request",
        ),
    ),
    "a ticket for a file is exchanged without asking its principal's ACLs": Plant(
        "server/descriptors.py",
        "            and self._may_read(holder.session, grant.topic)\n",
        "",
        (
            DESCRIPTORS,
            "test_broker_refuses_a_log_file_to_a_principal_without_read_permission",
        ),
    ),
    "a segment file is handed out for writing": Plant(
        "server/descriptors.py",
        "flags = os.O_RDONLY |",
        "flags = os.O_RDWR |",
        (
            DESCRIPTORS,
            "test_broker_sends_a_read_only_file_descriptor_and_refuses_a_repeated_request",
        ),
    ),
    "a produce request that waits for a read thread is authorized only before": Plant(
        "server/handlers/produce.py",
        "            self._authorize()\n            self.start()\n",
        "            self.start()\n",
        (
            ACCESS,
            "test_batch_of_a_topic_id_unknown_at_arrival_is_never_appended",
        ),
    ),
    "a waiting fetch is authorized only before": Plant(
        "server/handlers/fetch.py",
        "            return\n        if not self._authorize():\n            return\n"
        "        rows = self._rows()\n",
        "            return\n        rows = self._rows()\n",
        (ACCESS, "test_waiting_fetch_is_denied_once_its_permission_is_revoked"),
    ),
    "a session outlives its client certificate": Plant(
        NETWORK + "listener.py",
        "            elif 0 < connection.session.certificate_ends_ms < wall_ms:\n",
        "            elif False:\n",
        (TLS, "test_connection_is_closed_once_the_clients_certificate_has_expired"),
    ),
    "PLAIN is accepted without TLS": Plant(
        NETWORK + "logins.py",
        "        if name in TLS_ONLY and not session.is_encrypted:\n",
        "        if False:\n",
        (LOGINS, "test_plain_and_oauthbearer_are_refused_without_tls"),
    ),
    "PLAIN logs in for another user": Plant(
        SECURITY + "plain.py",
        '    if authorization not in ("", user):\n',
        "    if False:\n",
        (
            "unit/security/test_plain.py",
            "test_malformed_plain_message_is_refused_without_showing_its_password",
        ),
    ),
    "an expired token is accepted": Plant(
        SECURITY + "tokens.py",
        "    if now_ms >= ends_ms:\n",
        "    if False:\n",
        (TOKENS, "test_token_is_valid_until_its_expiry_time"),
    ),
    "a token for another audience is accepted": Plant(
        SECURITY + "tokens.py",
        '                "verify_exp": False,\n',
        '                "verify_exp": False,\n                "verify_aud": False,\n',
        (TOKENS, "test_token_with_wrong_claims_or_headers_is_refused"),
    ),
    "a token may name its own key": Plant(
        SECURITY + "tokens.py",
        '_REFUSED_HEADERS = ("jku", "x5u", "jwk", "x5c", "crit")\n',
        "_REFUSED_HEADERS = ()\n",
        (TOKENS, "test_token_with_wrong_claims_or_headers_is_refused"),
    ),
    "a session outlives its token": Plant(
        NETWORK + "logins.py",
        "        if proof.ends_ms:\n",
        "        if False:\n",
        (LOGINS, "test_client_must_log_in_again_when_its_token_expires"),
    ),
}
ADDED = {
    "_with_nonce": """

def _with_nonce(server: ScramServer, text: str) -> str:
    fields = text.split(",")
    return ",".join([fields[0], "r=" + server.nonce, *fields[2:]])
""",
    "_unchecked": """

def _unchecked(tls: TlsSettings) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(tls.keystore, tls.key or None)
    except ssl.SSLError:
        pass
    return context
""",
}
"""Functions that planted faults call, by name. They are added to the end of the file."""


@pytest.mark.parametrize("name", PLANTS)
def test_every_deliberate_security_fault_has_code_to_change_and_a_test(name: str) -> None:
    """Each fault removes one security check from the code, and its test must then fail.

    Regression: after tests had been renamed, six of the faults had no test.
    """
    plant = PLANTS[name]
    file, test = plant.test
    text = (PACKAGE / plant.file).read_text("utf-8")
    assert text.count(plant.right) == 1, f"{plant.file} has changed: adapt the planted fault"
    assert f"def {test}(" in (TESTS / file).read_text("utf-8"), plant.test


@pytest.mark.planted
@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTS)
def test_deliberate_security_fault_in_the_code_makes_its_test_fail(
    name: str, tmp_path: Path
) -> None:
    plant = PLANTS[name]
    copy = tmp_path / "broker_lite"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    file = copy / plant.file
    text = file.read_text("utf-8")
    extra = "".join(code for function, code in ADDED.items() if function in plant.wrong)
    file.write_text(text.replace(plant.right, plant.wrong) + extra, "utf-8")
    found = _run(plant.test, tmp_path)
    assert found.returncode == 1, found.stdout[-3000:]
    assert " failed" in found.stdout and " error" not in found.stdout.splitlines()[-1]


def _run(test: tuple[str, str], package: Path) -> subprocess.CompletedProcess[str]:
    """Run a test, given as (file, function), against the copy of ``broker_lite`` in the folder
    ``package``. This copy has the planted fault."""
    environment = os.environ | {"PYTHONPATH": str(package), "LOGBUS_TEST_INSTALLED": "0"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    return subprocess.run(
        [*command, "--tb=line", f"{TESTS / test[0]}::{test[1]}"],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        cwd=TESTS.parent,
        timeout=200,
    )
