"""The link to NATS: the supervised ``nats-server`` child, the data plane's raw socket, the control
thread's client.

Nothing here knows what STAN means; bytes and subjects pass through unread
(``docs/compat/nats.md``).
"""
