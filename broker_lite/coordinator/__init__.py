"""The state machine of a Kafka consumer group, and that of the keys and values of an internal
topic.

Both do no I/O and read no clock: the callers in ``server/coordinators/`` pass events in and carry
out the returned operations (effects). README.md lists the modules."""
