"""Fetch records from leaders, for consumers, Spark and mirrors.

- ``position``, ``lineage``: the state of one partition between two fetches, and the leader epochs
  of the records read
- ``fetches``: fetch requests for many partitions, and their responses
- ``fetch_engine``: prefetches the partitions of a consumer
- ``range_reader``, ``small_ranges``: read fixed offset ranges, for the tasks of Spark queries and
  the console
- ``ends``: keeps the end offsets of partitions current, for Spark queries that plan micro-batches
"""
