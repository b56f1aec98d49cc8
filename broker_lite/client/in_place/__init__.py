"""Local reads: a consumer reads the segment files of a broker on the same machine.

``partitions`` tracks which partitions are read locally. ``local_files`` reads a stored range
through the page cache, or with direct I/O through ``disk_parts`` into the buffers of
``disk_buffers``. If a file is unreadable or holds other data, the consumer fetches the range from
the broker.
"""
