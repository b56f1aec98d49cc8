"""The broker of logbus, its clients and its command line.

The package has layers. A layer may import only the layers to its left:

    model | lazy_names → errors → config → record | wire | security → net
          → storage | replication | coordinator | transactions → metadata → client → native
          → bus → mirror → server → local → observing → console → cli

``CONTRIBUTING.md`` lists the files of a produced batch, a fetched batch, a Spark micro-batch and a
group join in reading order.
"""

__version__ = "0.1.0"
