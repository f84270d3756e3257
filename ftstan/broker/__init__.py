"""What STAN means: clients, channels, subscriptions, deliveries.

An actor without I/O and without a clock.
"""
