"""The sockets of clients and brokers, plain or TLS.

``transport`` defines what a connection needs of a socket, and the plain form; ``tls`` is the TLS
form, ``contexts`` the TLS settings. A process imports ``ssl`` only if a setting asks for TLS.
"""
