"""The sockets of clients and brokers, plain or TLS.

``transport`` defines the interface that a connection uses, and implements it without encryption.
``tls`` implements it with TLS; ``contexts`` builds TLS contexts from settings. A process imports
``ssl`` only if a setting asks for TLS."""
