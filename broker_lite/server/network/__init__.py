"""Accept connections of clients and brokers, receive requests, and send the answers in the order of
the requests.

A ``ClientConnection`` passes each request to the dispatcher, together with its ``Session``, which
tells who the client is.
"""
