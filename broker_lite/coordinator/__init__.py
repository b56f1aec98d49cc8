"""The state machines of a Kafka consumer group and of an internal topic's keyed state.

Both machines do no I/O and read no clock. README.md lists the modules.
"""
