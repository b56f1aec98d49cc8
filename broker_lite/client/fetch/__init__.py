"""Fetch records from leaders, for consumers, Spark and mirrors.

- ``position``, ``lineage``: the state of one partition between fetches, and its leader epochs
- ``fetches``: fetch requests for many partitions, and their responses
- ``fetch_engine``: prefetches the partitions of a consumer
- ``range_reader``, ``small_ranges``: read fixed offset ranges, for Spark's tasks
- ``ends``: keeps end offsets current, for Spark's planning
"""
