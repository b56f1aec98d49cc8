"""Parse the settings of topics, including settings that this version of logbus cannot read.

The controller validates settings before it writes them. An unreadable setting therefore comes from
a later version or a manual edit in ZooKeeper. The topic's retention is then uncertain, so the
broker deletes none of its records until the setting is corrected.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping

from broker_lite.config import TopicConfig, parse
from broker_lite.errors import LogbusError
from broker_lite.model import TopicView
from broker_lite.server.log_events import log_event

logger = logging.getLogger("logbus.replicas")


class TopicConfigs:
    """A parser of topic settings that logs each unreadable set of settings once."""

    def __init__(self) -> None:
        self._logged: dict[str, Mapping[str, str]] = {}

    def of(self, view: TopicView) -> TopicConfig:
        """Return the topic's settings, with defaults for those that are not set or unreadable.

        If a setting is unreadable, retention is unlimited in the result, and the error is logged.
        """
        try:
            config = parse(TopicConfig, view.config)
        except LogbusError as error:
            if self._logged.get(view.topic_id) != view.config:
                self._logged[view.topic_id] = view.config
                logger.error(
                    "topic %s: %s. Its other settings apply, but retention is "
                    "disabled until the setting is corrected: logbus topic alter %s -c …",
                    view.name,
                    error,
                    view.name,
                    extra=log_event("topic_setting_invalid", topic=view.name),
                )
            return self._readable(view.config)
        self._logged.pop(view.topic_id, None)
        return config

    def _readable(self, settings: Mapping[str, str]) -> TopicConfig:
        config = TopicConfig()
        for key, text in settings.items():
            try:
                config = parse(TopicConfig, {key: text}, base=config)
            except LogbusError:
                continue
        return dataclasses.replace(config, retention_ms=-1, retention_bytes=-1)
