"""The connection to ZooKeeper, with kazoo, which only this package imports.

Read the modules in this order:

- ``tls``: the settings and the handshake of a TLS connection
- ``connection``: kazoo's client with logbus's address, credential, reconnects and TLS
- ``multi_read``: a request that kazoo lacks
- ``store``: ``MetadataStore``, for brokers and members of native groups
- ``blocking``: reads by tools and tests, without an event loop
- ``znode_acls``: the restriction of znodes to the brokers' credential

Without a credential, every ZooKeeper client may read and write every znode. With a credential
(``zookeeper.auth.file``), only its holder may use the znodes that it creates (digest scheme)."""
