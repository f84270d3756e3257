"""Whose the other end of a connection is, for Python."""


def is_ours(int fd) -> bool:
    """Whether what is sent on the TCP connection ``fd`` to this host is read by nobody but our
    account; the other end must have said something already. False, too, where the kernel does not
    tell.
    """
    return front_is_ours(fd)
