"""Parse the settings of topics, even if this version of logbus cannot read some of them.

The controller validates settings before it writes them, so an unreadable setting comes from a later
version of logbus or a manual edit in ZooKeeper. The intended retention is then uncertain, so the
broker deletes none of the topic's records until the setting is corrected."""

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
    """Parses the settings of topics, and logs each unreadable setting once."""

    def __init__(self) -> None:
        self._logged: dict[str, Mapping[str, str]] = {}

    def of(self, view: TopicView) -> TopicConfig:
        """Return the topic's settings. A missing or unreadable setting has its default.

        With an unreadable setting, the result has unlimited retention, so that no record is deleted
        by mistake."""
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
