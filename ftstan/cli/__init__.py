"""The commands: ``ftstan`` (the server, also installed as ``nats-streaming-server``) and
``ftstanctl``.
"""
