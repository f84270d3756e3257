"""The listener in front of the embedded NATS server: clients one hop from the core.

Clients connect to it, and every connection has one of its own to the NATS server behind. Bytes pass
both ways as they are, with two exceptions: what a client publishes to our core goes to it in
memory, and what the core publishes to a client goes to that client. The listener knows nothing of
STAN: whom a message is for it learns from the ``SUB`` lines that pass (``docs/architecture.md``).
"""
