"""One replica's log on disk: segments, indexes, checkpoints and recovery. Start at README.md.

``LogManager`` opens a data directory. ``Log`` is the log of one partition. Storage reaches the
operating system through the ``Files`` interface, which ``OsFiles`` implements.
"""
