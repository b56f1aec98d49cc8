"""Readers of partitions: consumers without a group's sharing, and what Spark reads with.

``fetching`` is the engine, ``source`` one partition as it sees it, ``lineage`` whose epochs it has
read; ``intake`` is the reader's side: positions, decoding. ``consumer`` and ``aio_consumer`` are
the two faces, which members of groups build on; ``starting``, ``following`` and ``gone`` are about
where to begin and partitions that come and go. For Spark: ``fetcher`` reads one range, ``ends``
knows where partitions end now.
"""
