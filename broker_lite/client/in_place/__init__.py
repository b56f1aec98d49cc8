"""Local reads: a consumer on the same machine as a broker reads the broker's segment files.

The broker answers a fetch with the position of the records in its file. ``partitions`` tracks the
partitions read in this way. ``local_files`` reads the file, through the page cache or by direct I/O
(``disk_parts``, into buffers of ``disk_buffers``). If the file is unreadable or holds other data,
the consumer fetches the records from the broker."""
