"""The bridge to JetStream: channels of a serving streaming server are mirrored into streams, while
it serves (``docs/jetstream.md``).

It stands beside the server: a client of it, and a reader of its files. It never writes to the
datastore, and appends to a stream only what the server's log holds, at the same sequence.
"""
