"""Whose the other end of a connection is, for Python."""


def is_ours(int fd):
    """Whether what is sent on the TCP connection ``fd`` to this host is read by nobody but our
    account; the other end must have said something already. ``None``: the kernel does not tell.
    """
    cdef int whose = front_peer(fd)
    return None if whose == PEER_UNKNOWN else whose != PEER_STRANGE
