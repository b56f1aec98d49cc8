"""Copy topics, settings and group offsets of a Kafka or logbus cluster to a logbus cluster.

These modules do no I/O, in reading order:

- ``offset_map``: the target offset of a source record
- ``rewrite``: the batch that the mirror sends for a fetched batch
- ``positions``: the format of the stored state, and where a copy resumes
- ``planning``: decisions about topics, settings and groups
- ``copies``: the state of one copied partition

These modules do I/O: ``source`` and ``target`` (the two clusters), ``claim`` (only one mirror at a
time), ``checkpoint`` (the stored state), ``resuming``, ``group_sync``, and ``mirror``, which runs
them. One mirror belongs to one thread.
"""
