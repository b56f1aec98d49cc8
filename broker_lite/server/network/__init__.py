"""Accept connections of clients and brokers, receive requests and send answers in request order.

A ``ClientConnection`` passes each request to the dispatcher, with the ``Session`` of its client.
"""
