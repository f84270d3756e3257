"""Nodes under supervisord, for hosts without systemd and for rehearsals: how they are restarted,
and who says why.

``policy.py`` is the one place that knows when a node is started again; ``listener.py`` reports
ends; ``rpc.py`` asks a supervisord. Nothing here imports the package ``supervisor``, or a server.
"""
