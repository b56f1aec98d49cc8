"""The ``logbus`` command: one file per noun, thin over the client.

stdout carries data, stderr everything else. Exit codes: 0 done, 1 failed, 2 wrong usage, 3 the
cluster is not reachable, 4 a check warns, 5 a check is critical, 124 timed out. No module here is
imported before its command is called.
"""
