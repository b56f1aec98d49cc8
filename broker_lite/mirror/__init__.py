"""Copy topics, settings and group offsets of a Kafka or logbus cluster to a logbus cluster.

Pure modules, in reading order: ``offset_map`` (the target offset of a source record), ``rewrite``
(a batch as the mirror sends it), ``positions`` (where a copy resumes), ``planning`` (topics,
settings, groups). Modules with I/O: ``source``, ``target``, ``claim`` (only one mirror at a time),
``copies`` (the state of a partition), ``checkpoint`` (the stored part of that state), ``resuming``,
``group_sync``, and ``mirror``, which runs them. One mirror belongs to one thread.
"""
