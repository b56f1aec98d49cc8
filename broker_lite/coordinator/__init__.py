"""A Kafka group as a pure state machine: who is in it, and who may commit. See README.md."""
