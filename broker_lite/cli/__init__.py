"""The ``logbus`` command: one module for each noun, such as ``topic``, in a thin layer over the
client.

Commands print data to stdout and everything else to stderr. Exit codes: 0 done, 1 failed, 2 wrong
usage, 3 the cluster is not reachable, 4 a check warns, 5 a check is critical, 124 timed out, 130
interrupted. The module of a command is imported only when the command is called."""
