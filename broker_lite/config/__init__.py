"""Every setting once: key, type, default, unit, bounds, effect. ``conf/*.conf`` is held to this.

Four frozen dataclasses: ``BrokerConfig``, ``TopicConfig``, ``ProducerConfig``, ``ConsumerConfig``.
Keys are spelt as Kafka spells them where Kafka has them; the Python name is the key with dots as
underscores. ``setting`` says what a setting is, ``parsing`` reads them.
"""

from broker_lite.config.broker import BrokerConfig
from broker_lite.config.client import ConsumerConfig, ProducerConfig
from broker_lite.config.parsing import keys, load, nearest, parse, text
from broker_lite.config.setting import DAY, GIB, INT_MAX, LONG_MAX, MINUTE, SECOND, Key, value_text
from broker_lite.config.topic import TopicConfig, min_insync, min_insync_of

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
    "min_insync",
    "min_insync_of",
    "nearest",
    "parse",
    "text",
    "value_text",
]
