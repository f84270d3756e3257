"""The load of ``ftstanctl bench``: publishers and subscribers whose work per message is C, all in
one thread.

``traffic`` is one connection without its socket: frames are written and read, and delays counted.
``clients`` gives it a connection and a session, ``drive`` lets many work until all are done. What a
server stores and delivers because of it are ordinary messages (``docs/ftstanctl.md``, bench).
"""
