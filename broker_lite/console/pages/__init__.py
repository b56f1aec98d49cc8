"""The data of each page, in one module for each kind of object, such as topics. The modules take
them from the newest state of the cluster that the package ``observing`` has read, and from the
public client."""
