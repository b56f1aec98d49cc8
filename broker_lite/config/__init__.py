"""All settings of brokers, topics, producers and consumers.

Each setting is a field of a frozen dataclass, with key, type, default, unit, bounds and effect. A
setting that Kafka has as well has Kafka's key. ``tests/test_conf.py`` checks that the files
``conf/*.conf`` describe exactly these settings.

``setting`` defines fields and checks values; ``parsing`` reads configurations from text. The
package imports a module on the first use of one of its names, because Python needs 50 ms to create
the classes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker_lite.lazy_names import lazy_names

if TYPE_CHECKING:
    from broker_lite.config.broker import BrokerConfig
    from broker_lite.config.client import ConsumerConfig, ProducerConfig
    from broker_lite.config.parsing import load, parse, text
    from broker_lite.config.setting import (
        DAY,
        GIB,
        INT_MAX,
        LONG_MAX,
        MINUTE,
        SECOND,
        Key,
        keys,
        nearest,
        value_text,
    )
    from broker_lite.config.topic import TopicConfig, loss_of, min_insync, min_insync_of

_HOMES = {
    "DAY": "setting",
    "GIB": "setting",
    "INT_MAX": "setting",
    "LONG_MAX": "setting",
    "MINUTE": "setting",
    "SECOND": "setting",
    "BrokerConfig": "broker",
    "ConsumerConfig": "client",
    "Key": "setting",
    "ProducerConfig": "client",
    "TopicConfig": "topic",
    "keys": "setting",
    "load": "parsing",
    "loss_of": "topic",
    "min_insync": "topic",
    "min_insync_of": "topic",
    "nearest": "setting",
    "parse": "parsing",
    "text": "parsing",
    "value_text": "setting",
}

__all__ = [
    "DAY",
    "GIB",
    "INT_MAX",
    "LONG_MAX",
    "MINUTE",
    "SECOND",
    "BrokerConfig",
    "ConsumerConfig",
    "Key",
    "ProducerConfig",
    "TopicConfig",
    "keys",
    "load",
    "loss_of",
    "min_insync",
    "min_insync_of",
    "nearest",
    "parse",
    "text",
    "value_text",
]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
