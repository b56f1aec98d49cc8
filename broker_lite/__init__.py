"""logbus' broker and its clients. Start here.

Layers point one way; each imports only what stands to its left:

    model → errors → config → record | wire → storage | replication | coordinator
          → metadata → client → server → local → cli

To follow one produced batch through the code, read in this order:
``server/connection`` (bytes in), ``wire/produce`` (frame to message), ``server/handlers/produce``,
``record/batch`` (checks), ``server/replica_manager``, ``replication/partition`` (what to do, as
effects), ``server/disk`` (group commit), ``storage/log`` and ``storage/segment`` (bytes on disk).
"""

__version__ = "0.1.0"
