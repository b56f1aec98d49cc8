"""Count what each client uses of its quotas at this broker, and compute throttle times (KIP-219).

A client over its quota gets its answer at once, with ``throttle_time_ms``; then the broker reads
nothing from the connection for that time. Requests of other brokers are not counted."""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Coroutine, Generator, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from broker_lite.errors import LogbusError, RequestTimedOutError, ThrottlingQuotaExceededError
from broker_lite.security.login_failures import network_of
from broker_lite.security.quotas import (
    BURST_S,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    NAME_LENGTH_MAX,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    Entity,
    Limit,
    QuotaTable,
    TokenBucket,
    Values,
)
from broker_lite.server.clock import Clock
from broker_lite.server.metrics import Metrics

if TYPE_CHECKING:
    from broker_lite.metadata.cache import MetadataSnapshot

CLIENTS_MAX = 10_000
"""Maximum number of entries of each of three caches: clients, their token buckets, and the token
buckets of addresses."""
CLIENT_ID_LENGTH_MAX = NAME_LENGTH_MAX + 1
"""Number of leading characters of a client id that count for quotas.

No quota can name a client id of this length, so a client id that is cut to this length matches no
other client's quota."""
REQUEST_THROTTLE_MS_MAX = 1000
"""Maximum throttle time (ms) for processing time and partition changes: the default of Kafka's
``quota.window.size.seconds``.

Overuse beyond this time stays charged to the client's token bucket."""

T = TypeVar("T")


class Principal(Protocol):
    @property
    def principal(self) -> str: ...

    @property
    def needs_login(self) -> bool: ...


class Metered(Protocol):
    """The fields of a request that decide which quotas apply to it."""

    @property
    def session(self) -> Principal: ...

    @property
    def client_id(self) -> str | None: ...

    @property
    def is_broker(self) -> bool: ...


Seconds = Callable[[], float]
Spent = Callable[[float], None]
"""Receives the seconds for which the broker worked for a request, on the event loop's thread."""


def uncounted(_seconds: float) -> None:
    """Drop the seconds: no quota limits them."""


class ClientQuota:
    """The quotas of one client at this broker, each with a token bucket."""

    __slots__ = ("_buckets", "_clock", "_metrics")

    def __init__(self, buckets: Mapping[str, TokenBucket], clock: Clock, metrics: Metrics) -> None:
        self._buckets = buckets
        self._clock = clock
        self._metrics = metrics

    @property
    def limits_time(self) -> bool:
        return REQUEST_PERCENTAGE in self._buckets

    @property
    def limits_fetches(self) -> bool:
        return CONSUMER_BYTE_RATE in self._buckets

    def _spend(self, key: str, amount: float) -> int:
        bucket = self._buckets.get(key)
        return 0 if bucket is None else bucket.spend(amount, self._clock.monotonic_ms())

    def produced(self, size: int) -> int:
        """Count the bytes of a produce request. Return the throttle time (ms)."""
        return self._throttled(PRODUCER_BYTE_RATE, self._spend(PRODUCER_BYTE_RATE, size))

    def fetched(self, size: int) -> int:
        """Count the bytes of a fetch answer. Return the throttle time (ms)."""
        return self._throttled(CONSUMER_BYTE_RATE, self._spend(CONSUMER_BYTE_RATE, size))

    def fetch_allowance(self) -> int:
        """Return how many bytes the client may fetch now; negative if it is over its quota.

        Call it only if ``limits_fetches`` is true."""
        self._spend(CONSUMER_BYTE_RATE, 0)
        return math.floor(self._buckets[CONSUMER_BYTE_RATE].left)

    def spend_time(self, seconds: float) -> None:
        """Charge ``seconds`` of the broker's processing time to the client's quota."""
        self._spend(REQUEST_PERCENTAGE, seconds * 100)

    def answered(self) -> int:
        """Return the throttle time (ms) for an answer to a request other than Produce and Fetch."""
        return self._throttled("", 0)

    def mutate(self, count: int, *, is_strict: bool) -> None:
        """Charge ``count`` created or deleted partitions to the quota (KIP-599).

        With ``is_strict``, raise ThrottlingQuotaExceededError if the quota is used up. Clients of
        older API versions do not know this error; they get an answer and are then throttled."""
        wait_ms = self._spend(CONTROLLER_MUTATION_RATE, 0)
        if wait_ms and is_strict:
            self._throttled(CONTROLLER_MUTATION_RATE, wait_ms)
            raise ThrottlingQuotaExceededError(
                f"the quota {CONTROLLER_MUTATION_RATE} is used up; try again in {wait_ms} ms"
            )
        self._spend(CONTROLLER_MUTATION_RATE, count)

    def refund(self, count: int, error: LogbusError) -> None:
        """Credit ``count`` partitions to the quota again, because their creation or deletion failed
        with ``error``.

        A change that timed out stays charged: it may still take effect."""
        if not isinstance(error, RequestTimedOutError):
            self._spend(CONTROLLER_MUTATION_RATE, -count)

    def _throttled(self, key: str, wait_ms: int) -> int:
        """Return the longest of three throttle times (ms): ``wait_ms``, the throttle for processing
        time, and the throttle for partition changes.

        Counts the result in the metrics."""
        for each in (REQUEST_PERCENTAGE, CONTROLLER_MUTATION_RATE):
            due_ms = min(self._spend(each, 0), REQUEST_THROTTLE_MS_MAX)
            if due_ms > wait_ms:
                key, wait_ms = each, due_ms
        if wait_ms:
            self._metrics.count("quota_throttles", key)
            self._metrics.count("request_throttle_seconds", key, amount=wait_ms / 1000)
        return wait_ms


class Quotas:
    """The quotas of all clients at one broker. ``apply`` takes them from each metadata snapshot."""

    def __init__(self, clock: Clock | None = None, metrics: Metrics | None = None) -> None:
        self._clock = clock or Clock()
        self._metrics = metrics or Metrics()
        self._source: Mapping[Entity, Values] = {}
        self._table = QuotaTable({})
        self.is_on = False
        """Whether any quota exists."""
        self._buckets: _Buckets = {}
        self._addresses: _Buckets = {}
        self._clients: dict[tuple[str, str], ClientQuota | None] = {}

    def apply(self, snapshot: MetadataSnapshot) -> None:
        """Use the quotas of the metadata snapshot. Each client's earlier use still counts."""
        if snapshot.quotas is self._source:
            return
        self._source = snapshot.quotas
        self._table = QuotaTable(snapshot.quotas)
        self.is_on = bool(self._table)
        self._clients.clear()
        if not self.is_on:
            self._buckets.clear()
            self._addresses.clear()

    def of(self, request: Metered) -> ClientQuota | None:
        """Return the quotas of the client that sent a request.

        Return None for a client without quotas, for a broker, and before the login, because clients
        that never log in could fill the memory with client ids."""
        if request.is_broker or request.session.needs_login:
            return None
        client_id = (request.client_id or "")[:CLIENT_ID_LENGTH_MAX]
        client = request.session.principal.removeprefix("User:"), client_id
        try:
            return self._clients[client]
        except KeyError:
            pass
        limits = self._table.limits(*client)
        buckets = {key: self._bucket(limit) for key, limit in limits.items()}
        quota = ClientQuota(buckets, self._clock, self._metrics) if buckets else None
        if len(self._clients) >= CLIENTS_MAX:
            self._clients.clear()
        self._clients[client] = quota
        return quota

    def _bucket(self, limit: Limit) -> TokenBucket:
        if limit.bucket not in self._buckets and len(self._buckets) >= CLIENTS_MAX:
            _forget(self._buckets)
            self._clients.clear()
        return _bucket(self._buckets, limit, self._clock.monotonic_ms())

    def may_connect(self, host: str) -> bool:
        """Return whether an address may open another connection, and if so count it.

        All addresses of an IPv6 /64 are counted together, unless a quota names ``host``."""
        limit = self._table.connection_limit(host, network_of(host))
        if limit is None:
            return True
        if limit.bucket not in self._addresses and len(self._addresses) >= CLIENTS_MAX:
            _forget(self._addresses)
        now_ms = self._clock.monotonic_ms()
        bucket = _bucket(self._addresses, limit, now_ms)
        bucket.spend(0, now_ms)
        if bucket.left < 1:
            return False
        bucket.spend(1, now_ms)
        return True


_Buckets = dict[tuple[str, ...], TokenBucket]


def _bucket(buckets: _Buckets, limit: Limit, now_ms: float) -> TokenBucket:
    bucket = buckets.get(limit.bucket)
    if bucket is None:
        bucket = TokenBucket(limit.rate, now_ms, BURST_S.get(limit.bucket[0], 1.0))
        buckets[limit.bucket] = bucket
    bucket.rate = limit.rate
    return bucket


def _forget(buckets: _Buckets) -> None:
    """Drop a tenth of the token buckets: those that will be full soonest.

    If the client of a dropped bucket returns, it gets a new, full bucket. The clients of these
    buckets gain the least from that."""
    for name in sorted(buckets, key=lambda name: buckets[name].full_at_ms)[: CLIENTS_MAX // 10]:
        del buckets[name]


def timed(work: Coroutine[Any, Any, T], now: Seconds, spent: Spent) -> Any:
    """Return an awaitable that runs ``work`` and passes the seconds of each step (up to the next
    wait) to ``spent``.

    Time in which the coroutine waits does not count."""

    @types.coroutine
    def steps() -> Generator[Any, Any, T]:
        given: Any = None
        failure: BaseException | None = None
        while True:
            began = now()
            try:
                awaited = work.send(given) if failure is None else work.throw(failure)
            except StopIteration as end:
                result: T = end.value
                return result
            finally:
                spent(now() - began)
            try:
                given, failure = (yield awaited), None
            except BaseException as error:
                given, failure = None, error

    return steps()
