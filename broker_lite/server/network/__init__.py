"""Accept connections, receive requests, and send the answers in the order of the requests.

A ``ClientConnection`` passes each request to the dispatcher with its ``Session``, the client's
identity and the state of its connection."""
