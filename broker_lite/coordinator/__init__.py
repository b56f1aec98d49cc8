"""The state machine of a Kafka consumer group. It does no I/O and reads no clock: the caller in
``server/coordinators/`` passes events in and carries out the returned operations (effects).
README.md lists the modules."""
