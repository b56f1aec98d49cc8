"""The data of each page, in one module for each kind of object, such as topics. Their sources are
the newest reading of the cluster (``observing``) and the public client."""
