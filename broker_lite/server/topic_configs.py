"""A topic's settings as a broker applies them, also where it cannot read all of them.

The controller checks what it writes, so a setting that does not parse is of a later version, or was
written by hand. What it says about keeping records is unknown then: none are deleted for their age
or size until it is mended. Loop thread.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping

from broker_lite import config as configs
from broker_lite.config import BrokerConfig, TopicConfig
from broker_lite.errors import LogbusError
from broker_lite.model import TopicView

logger = logging.getLogger("logbus.replicas")


class TopicConfigs:
    """``default`` is what the broker's own configuration says of topics."""

    def __init__(self, config: BrokerConfig) -> None:
        self.default = configs.parse(TopicConfig, config.topic_defaults())
        self._said: dict[str, Mapping[str, str]] = {}

    def of(self, view: TopicView) -> TopicConfig:
        """Every setting that can be read, over the defaults; no retention if one cannot."""
        try:
            found = configs.parse(TopicConfig, view.config, base=self.default)
        except LogbusError as error:
            if self._said.get(view.topic_id) != view.config:
                self._said[view.topic_id] = view.config
                logger.error(
                    "topic %s: %s. Its other settings are applied, and none of its records are "
                    "deleted for age or size until that one is mended: logbus topic alter %s -c …",
                    view.name,
                    error,
                    view.name,
                )
            return self._readable(view.config)
        self._said.pop(view.topic_id, None)
        return found

    def _readable(self, settings: Mapping[str, str]) -> TopicConfig:
        found = self.default
        for key, text in settings.items():
            try:
                found = configs.parse(TopicConfig, {key: text}, base=found)
            except LogbusError:
                continue
        return dataclasses.replace(found, retention_ms=-1, retention_bytes=-1)
