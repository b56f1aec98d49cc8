"""Reading a broker's files where reader and broker are on one machine: no bytes pass a socket.

``partitions``: which partitions a consumer reads so. ``local_files``: a stored range out of a file,
through the page cache or, by ``disk_parts``, past it into the memory of ``disk_rooms``. What a file
does not give as it should be, the broker is asked for.
"""
