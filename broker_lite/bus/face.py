"""``BusFace``: the part of ``Bus`` and ``AsyncBus`` that never waits."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from broker_lite.client.administration.admin import Admin
from broker_lite.client.client_config import take_security
from broker_lite.client.discovery import security_for
from broker_lite.client.options import build, check_names
from broker_lite.client.transactions.idle import IdleProducers, Reusable
from broker_lite.config import ProducerConfig
from broker_lite.config.client_security import ClientSecurity

ConsumerT = TypeVar("ConsumerT")
ProducerT = TypeVar("ProducerT", bound=Reusable)


def connect_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of ``connect`` as arguments of a bus: its security, and the defaults of
    its producers and consumers. Raises InvalidConfigError for an unknown option."""
    security, defaults = take_security(options)
    check_names(defaults)
    # Let the first request of a producer or consumer use its whole timeout, not only five seconds:
    # the bootstrap address is right, because ``connect`` raises an error unless a broker answers.
    return {"security": security, "options": {**defaults, "has_answered": True}}


class BusFace(ABC, Generic[ConsumerT, ProducerT]):
    """The client of one cluster, with its defaults for producers and consumers. ``ConsumerT`` and
    ``ProducerT`` are its classes of consumers and of transactional producers."""

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        client_id: str,
        options: Mapping[str, Any],
        zookeeper: str | None = None,
        security: ClientSecurity | None = None,
    ) -> None:
        self.bootstrap_servers = bootstrap_servers
        self.zookeeper = zookeeper
        self.client_id = client_id
        self.security = security_for(bootstrap_servers, security)
        self.admin = Admin(bootstrap_servers, client_id=client_id, security=self.security)
        self._options = {"client_id": client_id, **options, "security": self.security}
        self._idle: IdleProducers[ProducerT] = IdleProducers()
        self._consumers: weakref.WeakSet[ConsumerT] = weakref.WeakSet()
        self._open()

    @abstractmethod
    def _open(self) -> None:
        """Create the attributes that only this kind of bus has."""

    def _transaction_config(
        self, transactional_id: str, timeout_ms: int, options: Mapping[str, Any]
    ) -> ProducerConfig:
        given = {"transactional_id": transactional_id, "transaction_timeout_ms": timeout_ms}
        return build(ProducerConfig, {**options, **given}, self._options)
