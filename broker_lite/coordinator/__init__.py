"""Two state machines: a Kafka consumer group, and the keys and values of an internal topic.

They do no I/O and read no clock: the callers in ``server/coordinators/`` pass events in and carry
out the returned effects. README.md lists the modules.
"""
