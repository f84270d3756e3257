"""What the operator wrote: units, options, limits, the table of flags.

Nothing here opens a file or a socket.
"""
