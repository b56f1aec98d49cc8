"""The settings of a broker, which a file such as ``conf/broker.conf`` sets."""

from __future__ import annotations

from dataclasses import dataclass

from broker_lite.config.client_security import check_https
from broker_lite.config.setting import (
    DAY,
    INT_MAX,
    KIB,
    MIB,
    MINUTE,
    SECOND,
    Config,
    setting,
)
from broker_lite.errors import InvalidConfigError
from broker_lite.model import LOGIN_MECHANISMS, OAUTHBEARER

LISTENER_PREFIX = "listener.name."
"""Prefix of the keys that set one listener, as in ``listener.name.<name>.ssl.client.auth``."""


@dataclass(frozen=True, slots=True)
class BrokerConfig(Config):
    """Settings of one broker process."""

    broker_id: int = setting(
        "broker.id", 0, "id of this broker, unique in the cluster", at_least=0, at_most=INT_MAX
    )
    host: str = setting("host", "127.0.0.1", "address to listen on")
    listeners_insecure_allow: bool = setting(
        "listeners.insecure.allow",
        False,
        "allow a non-loopback listener although the broker has no authorization",
    )
    listeners: str = setting(
        "listeners", "", "listeners as NAME://host:port,…; empty: PLAINTEXT://host:port"
    )
    advertised_listeners: str = setting(
        "advertised.listeners", "", "addresses of the listeners in metadata answers"
    )
    protocol_map: str = setting(
        "listener.security.protocol.map",
        "PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL",
        "protocol of each listener as NAME:PROTOCOL,…",
    )
    inter_broker_listener_name: str = setting(
        "inter.broker.listener.name", "", "listener for other brokers; empty: the only listener"
    )
    listener_settings: str = setting(
        LISTENER_PREFIX.rstrip("."),
        "",
        "settings of one listener: listener.name.<name>.<key>=<value>",
    )
    ssl_keystore: str = setting(
        "ssl.keystore.location", "", "PEM file of the certificate chain and its private key"
    )
    ssl_key: str = setting(
        "ssl.key.location", "", "PEM file of the private key; empty: ssl.keystore.location"
    )
    ssl_truststore: str = setting(
        "ssl.truststore.location", "", "PEM file of the CAs that sign client certificates"
    )
    ssl_crl: str = setting(
        "ssl.crl.location", "", "PEM file of the revocation lists of these CAs; empty: none"
    )
    ssl_client_auth: str = setting(
        "ssl.client.auth",
        "none",
        "whether SSL listeners ask for a client certificate",
        choices=("none", "requested", "required"),
    )
    ssl_enabled_protocols: str = setting(
        "ssl.enabled.protocols", "TLSv1.3", "TLS versions: TLSv1.3, or TLSv1.2,TLSv1.3"
    )
    ssl_mapping_rules: str = setting(
        "ssl.principal.mapping.rules", "DEFAULT", "rules from certificate names to principals"
    )
    ssl_endpoint_identification: str = setting(
        "ssl.endpoint.identification.algorithm",
        "https",
        "check of other brokers' host names: https, or empty for none",
        choices=("https", ""),
    )
    connections_before_login_max: int = setting(
        "connections.before.login.max",
        512,
        "maximum connections that have not logged in yet; the oldest is closed",
        at_least=1,
    )
    login_timeout_ms: int = setting(
        "login.timeout.ms",
        10 * SECOND,
        "maximum time of the TLS handshake and the login",
        "ms",
        at_least=100,
    )
    connections_per_ip_max: int = setting(
        "max.connections.per.ip",
        1024,
        "maximum open connections of an address (IPv6: of a /64); loopback has no limit",
        at_least=1,
    )
    port: int = setting(
        "port", 9092, "port to listen on; 0: any free port", at_least=0, at_most=65535
    )
    advertised_host: str = setting(
        "advertised.host", "", "host name in metadata answers; empty: host"
    )
    advertised_port: int = setting(
        "advertised.port",
        0,
        "port in metadata answers; 0: port",
        at_least=0,
        at_most=65535,
    )
    rack: str = setting("broker.rack", "", "rack or availability zone of this broker; empty: none")
    log_dir: str = setting(
        "log.dir", "", "data directory; it holds the logs, a lock, an id and a start counter"
    )
    zookeeper_connect: str = setting(
        "zookeeper.connect",
        "127.0.0.1:2181/logbus",
        "address of the ZooKeeper ensemble: host:port,…/chroot",
    )
    zookeeper_session_timeout_ms: int = setting(
        "zookeeper.session.timeout.ms",
        6 * SECOND,
        "time without contact after which ZooKeeper ends the broker's session",
        "ms",
        at_least=500,
        at_most=10 * MINUTE,
    )
    zookeeper_auth_file: str = setting(
        "zookeeper.auth.file", "", "file of name:password, the brokers' credential at ZooKeeper"
    )
    zookeeper_ssl: bool = setting(
        "zookeeper.ssl.client.enable", False, "encrypt the connection to ZooKeeper with TLS"
    )
    zookeeper_ssl_truststore: str = setting(
        "zookeeper.ssl.truststore.location", "", "PEM file of the CAs of ZooKeeper's certificates"
    )
    zookeeper_ssl_keystore: str = setting(
        "zookeeper.ssl.keystore.location",
        "",
        "PEM file of the broker's certificate and key for ZooKeeper; empty: none",
    )
    zookeeper_ssl_identification: str = setting(
        "zookeeper.ssl.endpoint.identification.algorithm",
        "https",
        "https: ZooKeeper's certificate must name its host; none: any certificate of the CA",
        choices=("https", "none"),
    )
    zookeeper_insecure_allow: bool = setting(
        "zookeeper.insecure.allow",
        False,
        "let secured brokers use a ZooKeeper on another machine without TLS",
    )
    num_partitions: int = setting(
        "num.partitions",
        1,
        "partitions of a topic that is created without a partition count",
        at_least=1,
    )
    default_replication_factor: int = setting(
        "default.replication.factor",
        0,
        "replicas of a topic created without a replication factor; 0: at most 3, one per broker",
        at_least=0,
    )
    auto_create_topics: bool = setting(
        "auto.create.topics.enable",
        False,
        "create a missing topic when a client requests its metadata",
    )
    leader_rebalance_ms: int = setting(
        "leader.rebalance.ms",
        MINUTE,
        "time in sync after which leadership returns to the preferred replica; -1: never",
        "ms",
        at_least=-1,
    )
    frame_bytes_max: int = setting(
        "socket.request.max.bytes",
        64 * MIB,
        "maximum size of a request; a longer one closes the connection",
        "bytes",
        at_least=64 * KIB,
    )
    connections_max: int = setting(
        "max.connections",
        4096,
        "maximum open connections; further ones are closed at once",
        at_least=1,
    )
    connection_idle_ms: int = setting(
        "connections.max.idle.ms",
        10 * MINUTE,
        "time after which an idle connection is closed",
        "ms",
        at_least=1000,
    )
    connection_requests_max: int = setting(
        "connection.requests.max",
        64,
        "unanswered requests of a connection at which the broker stops reading the socket",
        at_least=1,
    )
    frame_timeout_ms: int = setting(
        "socket.request.timeout.ms",
        MINUTE,
        "maximum time to receive a whole request; then the connection is closed",
        "ms",
        at_least=1000,
    )
    in_flight_bytes_max: int = setting(
        "queued.max.bytes",
        256 * MIB,
        "maximum bytes of requests and unsent answers in memory; beyond it no socket is read",
        "bytes",
        at_least=1 * MIB,
    )
    fetch_bytes_max: int = setting(
        "fetch.max.bytes", 55 * MIB, "maximum size of a fetch response", "bytes", at_least=1 * KIB
    )
    fetch_wait_ms_max: int = setting(
        "fetch.max.wait.ms", 30 * SECOND, "maximum wait that a fetch may request", "ms", at_least=0
    )
    fetch_verify: str = setting(
        "fetch.verify",
        "unverified",
        "check the CRC before sending a batch: to clients that do not check it, to all, to none",
        choices=("unverified", "always", "never"),
    )
    local_reads: str = setting(
        "local.reads.enable",
        "auto",
        "let consumers on this machine read segment files; auto: open ones, with an authorizer",
        choices=("auto", "true", "false"),
    )
    unread_cached_bytes: int = setting(
        "unread.cached.bytes",
        4 * MIB,
        "unread bytes of a partition to keep cached",
        "bytes",
        at_least=-1,
    )
    disk_threads: int = setting(
        "disk.threads", 2, "threads that append and flush", at_least=1, at_most=64
    )
    read_threads: int = setting(
        "read.threads", 2, "threads that read from disk, verify, transcode", at_least=1, at_most=64
    )
    checkpoint_interval_ms: int = setting(
        "checkpoint.interval.ms",
        1000,
        "maximum time between two writes of the recovery points",
        "ms",
        at_least=10,
    )
    retention_check_interval_ms: int = setting(
        "log.retention.check.interval.ms",
        5 * MINUTE,
        "time between two retention checks",
        "ms",
        at_least=10,
    )
    stray_retention_ms: int = setting(
        "stray.retention.ms",
        7 * DAY,
        "time until the broker deletes logs that ZooKeeper does not assign to it; -1: never",
        "ms",
        at_least=-1,
    )
    producer_id_expiration_ms: int = setting(
        "producer.id.expiration.ms",
        DAY,
        "time after which the sequence numbers of an idle producer are dropped",
        "ms",
        at_least=1,
    )
    offset_metadata_bytes_max: int = setting(
        "offset.metadata.max.bytes",
        4096,
        "maximum size of the metadata of an offset commit",
        "bytes",
        at_least=0,
    )
    offset_commit_interval_ms: int = setting(
        "offset.commit.interval.ms",
        20,
        "minimum time between two ZooKeeper writes of offset commits",
        "ms",
        at_least=0,
    )
    offsets_retention_minutes: int = setting(
        "offsets.retention.minutes",
        10_080,
        "time without members and commits after which a group is deleted",
        "min",
        at_least=1,
    )
    offsets_retention_check_ms: int = setting(
        "offsets.retention.check.interval.ms",
        10 * MINUTE,
        "time between two checks of group retention",
        "ms",
        at_least=10,
    )
    transaction_max_timeout_ms: int = setting(
        "transaction.max.timeout.ms",
        15 * MINUTE,
        "maximum transaction.timeout.ms of a producer",
        "ms",
        at_least=1,
    )
    transactional_id_expiration_ms: int = setting(
        "transactional.id.expiration.ms",
        7 * DAY,
        "time after which the coordinator deletes an idle transactional id",
        "ms",
        at_least=1,
    )
    group_session_timeout_min_ms: int = setting(
        "group.min.session.timeout.ms",
        6 * SECOND,
        "minimum session.timeout.ms of a member",
        "ms",
        at_least=1,
    )
    group_session_timeout_max_ms: int = setting(
        "group.max.session.timeout.ms",
        30 * MINUTE,
        "maximum session.timeout.ms of a member",
        "ms",
        at_least=1,
    )
    group_initial_rebalance_delay_ms: int = setting(
        "group.initial.rebalance.delay.ms",
        250,
        "time that the first rebalance of an empty group waits for more members",
        "ms",
        at_least=0,
    )
    group_size_max: int = setting(
        "group.max.size", 1000, "maximum members of a group; further ones are refused", at_least=1
    )
    replica_lag_ms: int = setting(
        "replica.lag.time.max.ms",
        10 * SECOND,
        "maximum time that a follower may lag behind the leader's end and stay in sync",
        "ms",
        at_least=100,
    )
    replica_fetch_wait_ms: int = setting(
        "replica.fetch.wait.max.ms",
        500,
        "maximum time that a follower's fetch waits for new records",
        "ms",
        at_least=1,
        at_most=10 * SECOND,
    )
    sasl_enabled_mechanisms: str = setting(
        "sasl.enabled.mechanisms",
        "",
        "mechanisms of logins: SCRAM-SHA-256, SCRAM-SHA-512, PLAIN, OAUTHBEARER; empty: no logins",
    )
    oauth_keys: str = setting(
        "sasl.oauthbearer.jwks.endpoint.url",
        "",
        "file or https URL of the keys that sign access tokens, as a JSON Web Key Set",
    )
    oauth_issuer: str = setting(
        "sasl.oauthbearer.expected.issuer", "", "issuer (iss) of accepted access tokens"
    )
    oauth_expected_audience: str = setting(
        "sasl.oauthbearer.expected.audience",
        "",
        "audience (aud) of accepted access tokens; one of several with commas is enough",
    )
    oauth_name_claim: str = setting(
        "sasl.oauthbearer.sub.claim.name", "sub", "claim of access tokens that names the user"
    )
    reauth_ms: int = setting(
        "connections.max.reauth.ms",
        0,
        "time after which a client must log in again; 0: its session ends with its password",
        "ms",
        at_least=0,
    )
    inter_broker_client_config: str = setting(
        "inter.broker.client.config",
        "",
        "file of security.protocol, sasl.username, … with which this broker logs in to others",
    )
    authorizer: str = setting(
        "authorizer",
        "off",
        "access control lists: off, only reported in the log, or enforced",
        choices=("off", "report", "enforce"),
    )
    super_users: str = setting(
        "super.users", "", "principals that may do everything, as User:name;…"
    )
    allow_everyone_if_no_acl: bool = setting(
        "allow.everyone.if.no.acl.found", False, "allow everything on a resource without any ACL"
    )
    broker_principals: str = setting(
        "broker.principals",
        "User:broker-*",
        "principals of brokers on their listener, as User:name;…; * is the broker's id",
    )
    audit_log: str = setting(
        "audit.log", "", "file of the audit log: logins, denials and changes; empty: none"
    )
    metrics_host: str = setting(
        "metrics.host",
        "127.0.0.1",
        "host of the HTTP port; off loopback /metrics needs metrics.listener.name",
    )
    metrics_listener_name: str = setting(
        "metrics.listener.name",
        "",
        "listener whose TLS the HTTP port uses; /metrics then needs a login; empty: no TLS",
    )
    metrics_port: int = setting(
        "metrics.port",
        -1,
        "HTTP port of /metrics, /livez and /readyz; -1: off, 0: any free port",
        at_least=-1,
        at_most=65535,
    )

    metrics_topics_max: int = setting(
        "metrics.topics.max",
        200,
        "maximum topics with metrics of their own; the others share the label (other)",
        at_least=0,
        at_most=10_000,
    )
    log_format: str = setting(
        "log.format",
        "text",
        "format of log lines: text, or json for one JSON object a line",
        choices=("text", "json"),
    )

    @property
    def sasl_mechanisms(self) -> tuple[str, ...]:
        """The enabled SASL mechanisms, in the order of the setting."""
        names = [name.strip() for name in self.sasl_enabled_mechanisms.split(",")]
        return tuple(name for name in names if name)

    @property
    def oauth_audiences(self) -> tuple[str, ...]:
        """The accepted audiences of access tokens."""
        names = [name.strip() for name in self.oauth_expected_audience.split(",")]
        return tuple(name for name in names if name)

    @property
    def tells_paths(self) -> bool:
        """Whether the broker sends consumers on this machine the paths of segment files, so that
        they read the files directly."""
        is_auto = self.local_reads == "auto"
        return self.authorizer == "off" if is_auto else self.local_reads == "true"

    @property
    def hands_out_descriptors(self) -> bool:
        """Whether the broker passes segment files to consumers on this machine as open file
        descriptors. True with an authorizer and ``local.reads.enable=auto``, so that each consumer
        reads only the files that its ACLs allow."""
        return self.authorizer != "off" and self.local_reads == "auto"

    @property
    def keeps_files_private(self) -> bool:
        """Whether the broker makes its files readable only for its own operating-system user. True
        with an authorizer, because other accounts could otherwise read records without an ACL,
        unless consumers open the files themselves (``tells_paths``)."""
        return self.authorizer != "off" and not self.tells_paths

    @property
    def super_user_set(self) -> frozenset[str]:
        return frozenset(_principals("super.users", self.super_users))

    @property
    def broker_principal_list(self) -> tuple[str, ...]:
        """The patterns of the principals by which a broker recognises other brokers. A pattern may
        have one ``*``, which matches the broker id."""
        return _principals("broker.principals", self.broker_principals)

    def validate(self) -> None:
        if "User:*" in self.super_user_set:
            raise InvalidConfigError(
                "super.users=User:* names no user, because * is no wildcard there; name each user, "
                "or set authorizer=off"
            )
        if any(pattern.count("*") > 1 for pattern in self.broker_principal_list):
            raise InvalidConfigError(
                f"broker.principals={self.broker_principals[:80]!r}: a pattern may have only "
                "one *, which stands for the broker's id"
            )
        if any(name not in LOGIN_MECHANISMS for name in self.sasl_mechanisms):
            raise InvalidConfigError(
                f"sasl.enabled.mechanisms={self.sasl_enabled_mechanisms[:80]!r}: give "
                f"{', '.join(LOGIN_MECHANISMS)}, or several with commas"
            )
        if OAUTHBEARER in self.sasl_mechanisms:
            self._check_tokens()
        shortest, longest = self.group_session_timeout_min_ms, self.group_session_timeout_max_ms
        if shortest > longest:
            raise InvalidConfigError(
                f"group.min.session.timeout.ms={shortest} is longer than "
                f"group.max.session.timeout.ms={longest}; lower it to {longest}"
            )

    def _check_tokens(self) -> None:
        """Raise InvalidConfigError unless the settings say which access tokens (OAUTHBEARER) are
        accepted: the keys that sign them, their issuer, their audience, and the claim with the
        user's name."""
        for key, value, example in (
            ("jwks.endpoint.url", self.oauth_keys, "the https URL or file of its keys"),
            ("expected.issuer", self.oauth_issuer, "the iss of its tokens"),
            ("expected.audience", self.oauth_audiences, "the aud that its tokens have for logbus"),
            ("sub.claim.name", self.oauth_name_claim, "the claim with the user's name"),
        ):
            if not value:
                raise InvalidConfigError(
                    "sasl.enabled.mechanisms has OAUTHBEARER, but sasl.oauthbearer."
                    f"{key} is empty; set it to {example}"
                )
        if self.oauth_keys.startswith(("http:", "https:")):
            check_https(self.oauth_keys, "sasl.oauthbearer.jwks.endpoint.url")


def _principals(key: str, text: str) -> tuple[str, ...]:
    patterns = tuple(filter(None, (part.strip() for part in text.split(";"))))
    for principal in patterns:
        kind, _, name = principal.partition(":")
        if kind != "User" or not name or ",User:" in name.replace(" ", ""):
            raise InvalidConfigError(
                f"{key}: {principal[:80]!r} is not User:name; separate several with semicolons"
            )
    return patterns
