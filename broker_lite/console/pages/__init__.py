"""The data of each page, in one module for each kind of object, such as topics. Their sources are
the newest state of the cluster that ``observing`` has read, and the public client."""
