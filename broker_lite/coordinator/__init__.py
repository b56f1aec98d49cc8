"""State machines of coordinators: a Kafka consumer group, and an internal topic's keyed state.

Both are pure. See README.md."""
