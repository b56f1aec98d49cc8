"""Test three brokers with SASL over TLS for clients, and TLS with another CA between brokers.

logbus's clients and librdkafka exchange records. For each mistake in a client's settings, the error
names the setting to change.
"""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import confluent_kafka
import confluent_kafka.admin
import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StringType, StructField, StructType
from support.certificates import PemFiles, authority, write_pem
from support.faces import Face
from support.patience import until
from support.token_issuer import AUDIENCE, ISSUER, Issuer, serve

from broker_lite.bus import aconnect, connect
from broker_lite.cli.main import run as logbus
from broker_lite.client.administration import users
from broker_lite.client.client_config import take_security
from broker_lite.client.discovery import parse_endpoints
from broker_lite.client.transport.loop import LoopShell
from broker_lite.client.transport.pool import Pool
from broker_lite.client.transport.steps import CallExchange, Operation, Send
from broker_lite.errors import InvalidConfigError, LogbusError, SaslAuthenticationError
from broker_lite.local.cluster import LocalCluster
from broker_lite.model import Endpoint, ScramMechanism
from broker_lite.security.bearer import AccessToken
from broker_lite.wire.calls.cluster import MetadataRequest
from pyspark_logbus.datasource import DefaultSource
from pyspark_logbus.error_line import RefusedWhilePickledError

pytestmark = pytest.mark.real

PASSWORD = "wonder land"


class Secured(NamedTuple):
    """A running cluster with SASL over TLS, and the files of its clients."""

    cluster: LocalCluster
    pem: PemFiles
    folder: Path
    issuer: Issuer

    def login(self, **changes: str) -> dict[str, str]:
        """Return the options of ``connect`` for alice, over TLS."""
        options = {
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": "SCRAM-SHA-512",
            "sasl_username": "alice",
            "sasl_password": PASSWORD,
            "ssl_ca_location": self.pem.ca,
        }
        return {name: value for name, value in (options | changes).items() if value}

    def address(self, listener: str) -> str:
        """Return the address of the listener with this name on broker 0."""
        options = {key.replace("_", "."): value for key, value in self.login().items()}
        servers = self.cluster.bootstrap_servers
        admin = confluent_kafka.admin.AdminClient(options | {"bootstrap.servers": servers})
        resource = confluent_kafka.admin.ConfigResource("BROKER", "0")
        [described] = admin.describe_configs([resource]).values()
        listeners = described.result(30)["advertised.listeners"].value
        return dict(row.split("://") for row in listeners.split(","))[listener]


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    pem = write_pem(folder / "clients")
    between = write_pem(folder / "brokers", ca=trustme.CA(organization_name="brokers"))
    for_another_host = write_pem(folder / "elsewhere", "elsewhere.example")
    settings = {
        "listeners": "CLIENTS://127.0.0.1:0,BROKERS://127.0.0.1:0,PLAIN://127.0.0.1:0,"
        "CERTIFIED://127.0.0.1:0,ELSEWHERE://127.0.0.1:0",
        "advertised.listeners": "ELSEWHERE://elsewhere.example:0",
        "listener.security.protocol.map": "CLIENTS:SASL_SSL,BROKERS:SSL,PLAIN:PLAINTEXT,"
        "CERTIFIED:SSL,ELSEWHERE:SASL_SSL",
        "inter.broker.listener.name": "BROKERS",
        "sasl.enabled.mechanisms": "SCRAM-SHA-512,PLAIN,OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": f"file://{folder}/keys.json",
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "ssl.keystore.location": pem.certificate,
        "listener.name.brokers.ssl.keystore.location": between.certificate,
        "listener.name.brokers.ssl.truststore.location": between.ca,
        "listener.name.brokers.ssl.client.auth": "required",
        "listener.name.certified.ssl.truststore.location": pem.ca,
        "listener.name.certified.ssl.client.auth": "required",
        "listener.name.elsewhere.ssl.keystore.location": for_another_host.certificate,
    }
    issuer = Issuer(lifetime_s=3)
    (folder / "keys.json").write_bytes(issuer.key_set())
    with LocalCluster(3, directory=folder / "cluster", config=settings) as cluster:
        password = folder / "password"
        password.write_text(PASSWORD + "\n", "utf-8")
        first = ["--first", "--zookeeper", cluster.zookeeper, "--mechanism", "SCRAM-SHA-512"]
        assert logbus(["user", "add", "alice", "--password-file", str(password), *first]) == 0
        found = Secured(cluster, pem, folder, issuer)
        until(lambda: can_log_in(found))
        yield found


def can_log_in(secured: Secured) -> bool:
    """Return whether every broker knows the user alice yet, so that she can log in."""
    try:
        for address in secured.cluster.bootstrap_servers.split(","):
            connect(address, **secured.login()).close()
    except LogbusError:
        return False
    return True


def test_logbus_clients_and_librdkafka_exchange_replicated_records(
    secured: Secured, face: Face
) -> None:
    servers, topic = secured.cluster.bootstrap_servers, f"t-{face.name}"
    with face.connect(servers, **secured.login()) as bus:
        bus.create_topic(
            topic, partitions=3, replication_factor=3, config={"min.insync.replicas": "2"}
        )
        with bus.producer() as producer:
            large = b"x" * 300_000
            sent = [producer.send(topic, value=large, key=str(each)) for each in range(30)]
            assert {each.result(60).topic for each in sent} == {topic}
        options = {key.replace("_", "."): value for key, value in secured.login().items()}
        theirs = confluent_kafka.Producer({"bootstrap.servers": servers, **options})
        failures: list[object] = []
        theirs.produce(topic, b"theirs", on_delivery=lambda error, _: failures.append(error))
        assert theirs.flush(30) == 0
        assert failures == [None]
        with bus.consumer(topic, start="earliest", group=topic, local_reads=False) as consumer:
            records = iter(consumer)
            values = [next(records).value for _ in range(31)]
        assert sorted(len(value or b"") for value in values) == [6] + [300_000] * 30


def kafka_options(options: dict[str, str]) -> dict[str, str]:
    """Rename options of ``connect`` to the names that librdkafka and Spark use."""
    return {key.replace("_", "."): value for key, value in options.items()}


def test_clients_log_in_with_sasl_plain(secured: Secured) -> None:
    servers, login = secured.cluster.bootstrap_servers, secured.login(sasl_mechanism="PLAIN")
    theirs = confluent_kafka.admin.AdminClient(
        {"bootstrap.servers": servers, **kafka_options(login)}
    )
    assert len(theirs.list_topics(timeout=30).brokers) == 3
    connect(servers, **login).close()
    asyncio.run(connect_and_close(servers, login))
    given = kafka_options(login)
    source = DefaultSource({"bootstrap.servers": servers, "subscribe": "t", **given})
    with connect(servers, **login) as bus:
        bus.create_topic("t", partitions=1, if_not_exists=True)
    assert b"PlainPassword" in pickle.dumps(source.streamReader(source.schema()))


async def connect_and_close(servers: str, login: dict[str, str]) -> None:
    await (await aconnect(servers, **login)).close()


def test_connections_reauthenticate_with_new_oauth_tokens(
    secured: Secured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers, issuer = secured.cluster.bootstrap_servers, secured.issuer
    monkeypatch.setenv("SSL_CERT_FILE", secured.pem.ca)
    login = secured.login(
        sasl_mechanism="OAUTHBEARER",
        sasl_username="",
        sasl_password="",
        sasl_oauthbearer_client_id="carol",
        sasl_oauthbearer_client_secret="of carol",
    )
    handed_out: list[str] = []

    def token(_: str) -> tuple[str, float]:
        ends = time.time() + issuer.lifetime_s
        handed_out.append("token")
        return issuer.token("dave", exp=ends), ends

    theirs = confluent_kafka.Producer({
        "bootstrap.servers": servers,
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "ssl.ca.location": secured.pem.ca,
        "oauth_cb": token,
    })  # fmt: skip
    failures: list[object] = []
    with serve(issuer, tmp_path / "issuer") as url:
        url = login["sasl_oauthbearer_token_endpoint_url"] = f"{url}/token"
        with pytest.raises(InvalidConfigError, match=f"LOGBUS_OAUTH_ALLOWED_URLS={url}"):
            connect(servers, **login)
        monkeypatch.setenv("LOGBUS_OAUTH_ALLOWED_URLS", f"https://x.example/,{url}")
        with connect(servers, **login) as bus:
            bus.create_topic("t", partitions=1, if_not_exists=True)
            sent = []
            with bus.producer() as producer:
                while issuer.asked.count("/token") < 3 or len(handed_out) < 3:
                    sent.append(producer.send("t", value=b"ours"))
                    theirs.produce("t", b"theirs", on_delivery=lambda *it: failures.append(it[0]))
                    theirs.poll(0.02)
                assert {each.result(60).topic for each in sent} == {"t"}
        assert theirs.flush(30) == 0
        assert set(failures) == {None}
        asyncio.run(connect_and_close(servers, login))
        check_tasks(servers, login)
        wrong = {**login, "sasl_oauthbearer_client_secret": "canary"}
        with pytest.raises(LogbusError, match=r"client 'carol'.*status 401.*id") as refused:
            connect(servers, **wrong)
        assert "canary" not in str(refused.value)
    foreign = Issuer().token()
    ask = Send(parse_endpoints(servers)[0], CallExchange(MetadataRequest(())))
    refused_token, _ = take_security(login)
    stale = replace(refused_token, secret=AccessToken(foreign, 0))
    with pytest.raises(SaslAuthenticationError, match="refused the access token of client 'carol'"):
        Pool("tests", stale).ask(ask)


def check_tasks(servers: str, login: dict[str, str]) -> None:
    """Check that a Spark query hands its tasks the current access token, but not the client's
    secret."""
    jaas = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required "
    given = {f"kafka.{key}": value for key, value in kafka_options(login).items()}
    del given["kafka.sasl.oauthbearer.client.id"], given["kafka.sasl.oauthbearer.client.secret"]
    given["kafka.sasl.jaas.config"] = f'{jaas}clientId="carol" clientSecret="of carol";'
    given["kafka.sasl.login.callback.handler.class"] = (
        "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
    )
    given |= {"bootstrap.servers": servers, "subscribe": "t", "startingOffsets": "earliest"}
    source = DefaultSource(given)
    planned = pickle.dumps(source.streamReader(source.schema()))
    assert b"AccessToken" in planned and b"of carol" not in planned
    # Spark pickles the reader of a stream once. A later batch must not use its expired token.
    reader = source.streamReader(source.schema())
    executor = pickle.loads(planned)
    try:
        start = reader.initialOffset()
        end = until(lambda: reader.latestOffset(start, ReadAllAvailable()), lambda at: at != start)
        until(lambda: time.time() * 1000 > executor._plan.options.security.secret.ends_ms)
        tasks = pickle.dumps(reader.partitions(start, end))
        assert b"of carol" not in tasks
        batches = [rows for task in pickle.loads(tasks) for rows in executor.read(task)]
        assert b"ours" in [value for rows in batches for value in rows["value"].to_pylist()]
    finally:
        reader.stop()


def test_client_logs_in_with_a_settings_file(secured: Secured, tmp_path: Path) -> None:
    file = tmp_path / "client.conf"
    rows = {key.replace("_", "."): value for key, value in secured.login().items()}
    file.write_text("".join(f"{key}={value}\n" for key, value in rows.items()), "utf-8")
    file.chmod(0o600)
    servers = secured.cluster.bootstrap_servers
    connect(servers, client_config=file).close()
    with pytest.raises(LogbusError, match="refused the login of user 'alice'"):
        connect(servers, client_config=file, sasl_password="other")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sasl_password": "wrong"}, "password is wrong .* no such user.*Check sasl.username"),
        ({"sasl_username": "nobody"}, "password is wrong .* no such user.*Check sasl.username"),
        ({"sasl_mechanism": "PLAIN", "sasl_password": "x"}, "password is wrong .*Check sasl.user"),
        ({"sasl_mechanism": "SCRAM-SHA-256"}, "not accept .*SHA-256; use one of: SCRAM-SHA-512"),
        ({"security_protocol": "PLAINTEXT", "sasl_mechanism": "", "sasl_username": "",
          "sasl_password": "", "ssl_ca_location": ""}, "set security.protocol"),
        ({"security_protocol": "SASL_PLAINTEXT", "ssl_ca_location": ""}, "set security.protocol"),
        ({"security_protocol": "SSL", "sasl_mechanism": "", "sasl_username": "",
          "sasl_password": ""}, "demands a login, set security.protocol=SASL_SSL"),
        ({"ssl_ca_location": "foreign"}, "did not sign the broker's certificate.*ssl.ca.location"),
        ({"ssl_ca_location": ""}, "did not sign the broker's certificate.*ssl.ca.location"),
    ],
)  # fmt: skip
def test_error_for_a_wrong_client_setting_names_the_setting_to_change(
    secured: Secured, changes: dict[str, str], message: str
) -> None:
    if changes.get("ssl_ca_location") == "foreign":
        foreign = write_pem(secured.folder / "foreign", ca=trustme.CA())
        changes = {**changes, "ssl_ca_location": foreign.ca}
    check_refusal(secured.cluster.bootstrap_servers, secured.login(**changes), message)


def check_refusal(servers: str, options: dict[str, str], message: str) -> None:
    """Check that the blocking, the asyncio and Spark's client raise an error with this message."""
    security, _ = take_security(options)
    ask = Send(parse_endpoints(servers)[0], CallExchange(MetadataRequest(())), 10_000)

    def operation() -> Operation[Any]:
        return (yield ask)

    async def on_a_loop() -> None:
        shell = LoopShell("tests", security)
        try:
            await shell.run(operation())
        finally:
            shell.close()

    with pytest.raises(LogbusError, match=message):
        Pool("tests", security).run(operation())
    with pytest.raises(LogbusError, match=message):
        asyncio.run(on_a_loop())
    given = {f"kafka.{key.replace('_', '.')}": value for key, value in options.items()}
    with pytest.raises(LogbusError, match=message) as raised:
        plan_query(servers, given)
    assert PASSWORD not in str(raised.value)


def plan_query(servers: str, options: dict[str, str]) -> None:
    """Plan a batch query as Spark's driver does."""
    named = {"bootstrap.servers": servers, "subscribe": "t", "fetchOffset.numRetries": "0"}
    source = DefaultSource(named | options)
    source.reader(source.schema()).partitions()


def test_errors_of_sparks_sink_and_stream_name_the_wrong_password(secured: Secured) -> None:
    servers = secured.cluster.bootstrap_servers
    given = {key.replace("_", "."): value for key, value in secured.login().items()}
    given |= {"bootstrap.servers": servers, "subscribe": "t", "topic": "t"}
    sound = DefaultSource(given)
    rows = StructType([StructField("value", StringType())])
    with connect(servers, **secured.login()) as bus:
        bus.create_topic("t", partitions=1, if_not_exists=True)
    for made in (
        sound.streamReader(sound.schema()),
        sound.streamWriter(rows, False),
        sound.writer(rows, False),
    ):
        pickled = pickle.dumps(made)
        assert PASSWORD.encode() not in pickled
        assert b"ScramKeys" in pickled
    wrong = DefaultSource(given | {"sasl.password": "wrong"})
    message = "refused the login of user 'alice'.*Check sasl.username and sasl.password"
    with pytest.raises(SaslAuthenticationError, match=message):
        wrong.writer(rows, False)
    with pytest.raises(RefusedWhilePickledError, match=message):
        pickle.dumps(wrong.streamWriter(rows, False))
    with pytest.raises(RefusedWhilePickledError, match=message):
        pickle.dumps(wrong.streamReader(wrong.schema()))
    planner = wrong.streamReader(wrong.schema())
    start = planner.initialOffset()
    with pytest.raises(SaslAuthenticationError, match=message):
        planner.latestOffset(start, ReadAllAvailable())
    planner.stop()
    # A query that resumes has its start offsets in a checkpoint. It must name the password, too.
    begun = sound.streamReader(sound.schema())
    checkpoint = begun.latestOffset(begun.initialOffset(), ReadAllAvailable())
    begun.stop()
    planner = wrong.streamReader(wrong.schema())
    with pytest.raises(SaslAuthenticationError, match=message):
        planner.latestOffset(checkpoint, ReadAllAvailable())
    planner.stop()


def test_spark_stream_of_a_deleted_user_fails_with_the_refused_login(secured: Secured) -> None:
    servers = secured.cluster.bootstrap_servers
    login = secured.login(sasl_username="bob", sasl_password="of bob")
    given = {key.replace("_", "."): value for key, value in login.items()}
    source = DefaultSource({"bootstrap.servers": servers, "subscribe": "t", **given})
    with connect(servers, **secured.login()) as bus:
        bus.create_topic("t", partitions=1, if_not_exists=True)
        mechanisms = [ScramMechanism.SHA_512]
        bus.admin.run(users.set_password, "bob", "of bob", mechanisms)
        stream = source.streamReader(source.schema())
        try:
            at = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
            bus.admin.run(users.delete_user, "bob")

            def is_refused() -> bool:
                try:
                    stream.latestOffset(at, ReadAllAvailable())
                except SaslAuthenticationError as error:
                    return "refused the login of user 'bob'" in str(error)
                return False

            until(is_refused)
        finally:
            stream.stop()


def test_error_for_malformed_jaas_text_does_not_repeat_its_values(secured: Secured) -> None:
    options = secured.login(sasl_username="", sasl_password="")
    module = "org.apache.kafka.common.security.scram.ScramLoginModule required"
    for text, said in (
        (f'{module} username="alice" password="{PASSWORD}"', "ends in ';'"),
        (f'{module} username="alice" password="{PASSWORD};', "from character"),
        (f'{module} username="alice" "{PASSWORD}";', "without a value"),
        (f'com.example.LoginModule required password="{PASSWORD}";', "login module"),
    ):
        given = {**options, "sasl_jaas_config": text}
        with pytest.raises(InvalidConfigError, match=said) as refused:
            connect(secured.cluster.bootstrap_servers, **given)
        assert PASSWORD not in str(refused.value)
        given = {f"kafka.{key.replace('_', '.')}": value for key, value in given.items()}
        with pytest.raises(InvalidConfigError, match=said) as refused:
            plan_query(secured.cluster.bootstrap_servers, given)
        assert PASSWORD not in str(refused.value)


def test_client_options_may_contain_a_ca_and_an_encrypted_key_as_text(secured: Secured) -> None:
    """Pass CA certificates as text, and the file of a private key that needs a password."""
    servers = secured.cluster.bootstrap_servers
    text = Path(secured.pem.ca).read_text("utf-8")
    connect(servers, **secured.login(ssl_ca_location="", ssl_truststore_certificates=text)).close()
    with pytest.raises(InvalidConfigError, match="is not the PEM text"):
        connect(servers, **secured.login(ssl_ca_location="", ssl_ca_pem="canary"))
    leaf = authority().issue_cert("client")
    key = load_pem_private_key(leaf.private_key_pem.bytes(), None)
    encryption = BestAvailableEncryption(b"of the key")
    file = secured.folder / "encrypted.pem"
    file.write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)
        + leaf.cert_chain_pems[0].bytes()
    )
    file.chmod(0o600)
    given = {
        "security_protocol": "SSL",
        "ssl_ca_location": secured.pem.ca,
        "ssl_keystore_location": str(file),
    }
    address = secured.address("CERTIFIED")
    connect(address, **given, ssl_key_password="of the key").close()
    with pytest.raises(InvalidConfigError, match=r"or ssl\.key\.password is wrong"):
        connect(address, **given, ssl_key_password="wrong")
    with pytest.raises(InvalidConfigError, match="the key is encrypted"):
        connect(address, **given)


def test_client_error_names_an_expired_broker_certificate(secured: Secured) -> None:
    expired = write_pem(secured.folder / "stale", expired=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(expired.certificate)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    sock, _ = server.accept()
                    with contextlib.suppress(OSError), sock:
                        context.wrap_socket(sock, server_side=True).close()

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            address = f"127.0.0.1:{server.getsockname()[1]}"
            check_refusal(address, secured.login(), "certificate has expired; renew the file")
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


def test_client_does_not_retry_a_refused_login(secured: Secured) -> None:
    servers = secured.cluster.bootstrap_servers
    with pytest.raises(SaslAuthenticationError):
        connect(servers, **secured.login(sasl_password="wrong"))
    with pytest.raises(SaslAuthenticationError):
        asyncio.run(aconnect(servers, **secured.login(sasl_password="wrong")))


def test_error_of_a_tls_client_at_a_plaintext_port_names_the_protocol(secured: Secured) -> None:
    address = secured.address("PLAIN")
    check_refusal(address, secured.login(), "security.protocol=PLAINTEXT")
    options = secured.login(security_protocol="SASL_PLAINTEXT", ssl_ca_location="")
    check_refusal(address, options, "accepts no logins; set security.protocol=PLAINTEXT")


def test_client_error_names_a_broker_certificate_for_another_host(secured: Secured) -> None:
    port = secured.address("ELSEWHERE").rpartition(":")[2]
    check_refusal(f"127.0.0.1:{port}", secured.login(), "is not for 127.0.0.1")
    security, _ = take_security(secured.login(ssl_endpoint_identification_algorithm="none"))
    ask = Send(Endpoint("127.0.0.1", int(port)), CallExchange(MetadataRequest(())))
    assert "elsewhere.example" in {each.host for each in Pool("tests", security).ask(ask).brokers}


@pytest.mark.parametrize("fault", ["none", "expired", "foreign"])
def test_client_error_says_that_the_broker_refused_the_client_certificate(
    secured: Secured, fault: str
) -> None:
    options = {"security_protocol": "SSL", "ssl_ca_location": secured.pem.ca}
    if fault != "none":
        ca = trustme.CA() if fault == "foreign" else authority()
        made = write_pem(secured.folder / fault, ca=ca, expired=fault == "expired")
        options["ssl_certificate_location"] = made.certificate
    check_refusal(secured.address("CERTIFIED"), options, "refused the client certificate")
