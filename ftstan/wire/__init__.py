"""Bytes to messages and back: NATS framing, STAN messages, subjects, identifiers.

No socket, file or clock.
"""
