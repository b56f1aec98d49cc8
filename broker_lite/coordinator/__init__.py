"""A Kafka consumer group as a pure state machine: its members and their commits. See README.md."""
