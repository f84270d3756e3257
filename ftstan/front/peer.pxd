"""Whose the other end of a TCP connection on this host is.

The NATS server behind the listener has a port of the loopback. While it is being started again,
another account can open that port, and would be told logins. So nothing is said on a connection
until the other end has said something, and nothing where the kernel says that its socket is of
another account. It must have spoken: the kernel counts a connection that nobody has accepted yet as
root's.
"""

cdef extern from *:
    """
    #include <arpa/inet.h>
    #include <errno.h>
    #include <linux/inet_diag.h>
    #include <linux/netlink.h>
    #include <linux/sock_diag.h>
    #include <netinet/in.h>
    #include <netinet/tcp.h>
    #include <stdint.h>
    #include <stdio.h>
    #include <string.h>
    #include <sys/socket.h>
    #include <sys/time.h>
    #include <unistd.h>

    #define PEER_OURS 1
    #define PEER_GONE 2
    #define PEER_STRANGE 0
    #define PEER_UNKNOWN -1

    static int peer_of(uid_t uid, unsigned long inode)
    {
        /* Without one, no process has it open any more: nobody can read what is sent there. */
        if (inode == 0)
            return PEER_GONE;
        return uid == geteuid() ? PEER_OURS : PEER_STRANGE;
    }

    /* Ask ``sock_diag``: one socket of the whole table. */
    static int peer_by_diag(const struct sockaddr_storage *ours,
                            const struct sockaddr_storage *theirs)
    {
        struct {
            struct nlmsghdr head;
            struct inet_diag_req_v2 what;
        } ask;
        union {
            struct nlmsghdr head;
            char room[1024];
        } said;
        struct timeval limit = {1, 0};
        const struct inet_diag_msg *found;
        ssize_t got;
        int fd = socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
        if (fd < 0)
            return PEER_UNKNOWN;
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
        memset(&ask, 0, sizeof ask);
        ask.head.nlmsg_len = sizeof ask;
        ask.head.nlmsg_type = SOCK_DIAG_BY_FAMILY;
        ask.head.nlmsg_flags = NLM_F_REQUEST;
        ask.what.sdiag_family = ours->ss_family;
        ask.what.sdiag_protocol = IPPROTO_TCP;
        ask.what.idiag_states = ~0U;
        ask.what.id.idiag_cookie[0] = ask.what.id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
        /* Its own end is our other one. */
        if (ours->ss_family == AF_INET) {
            const struct sockaddr_in *a = (const void *)theirs, *b = (const void *)ours;
            ask.what.id.idiag_sport = a->sin_port;
            ask.what.id.idiag_dport = b->sin_port;
            memcpy(ask.what.id.idiag_src, &a->sin_addr, sizeof a->sin_addr);
            memcpy(ask.what.id.idiag_dst, &b->sin_addr, sizeof b->sin_addr);
        } else {
            const struct sockaddr_in6 *a = (const void *)theirs, *b = (const void *)ours;
            ask.what.id.idiag_sport = a->sin6_port;
            ask.what.id.idiag_dport = b->sin6_port;
            memcpy(ask.what.id.idiag_src, &a->sin6_addr, sizeof a->sin6_addr);
            memcpy(ask.what.id.idiag_dst, &b->sin6_addr, sizeof b->sin6_addr);
        }
        got = send(fd, &ask, sizeof ask, 0) == sizeof ask ? recv(fd, &said, sizeof said, 0) : -1;
        close(fd);
        if (got < (ssize_t)NLMSG_LENGTH(sizeof *found) ||
            said.head.nlmsg_type != SOCK_DIAG_BY_FAMILY)
            return PEER_UNKNOWN;
        found = NLMSG_DATA(&said.head);
        return peer_of(found->idiag_uid, found->idiag_inode);
    }

    /* The same from one table of ``/proc``: all of it. ``ends``: how it begins for that socket. */
    static int peer_in_table(const char *path, const char *ends)
    {
        char line[512];
        unsigned uid;
        unsigned long inode;
        int verdict = PEER_UNKNOWN;
        FILE *table = fopen(path, "re");
        if (table == NULL)
            return PEER_UNKNOWN;
        while (verdict == PEER_UNKNOWN && fgets(line, sizeof line, table) != NULL) {
            const char *at = strstr(line, ends);
            if (at != NULL && sscanf(at + strlen(ends), "%*x %*x:%*x %*x:%*x %*x %u %*d %lu", &uid,
                                     &inode) == 2)
                verdict = peer_of(uid, inode);
        }
        fclose(table);
        return verdict;
    }

    /* An address as IPv6 writes it, in words of the network; one of IPv4 is mapped. */
    static unsigned peer_words(const struct sockaddr_storage *end, uint32_t words[4])
    {
        const struct sockaddr_in *four = (const void *)end;
        const struct sockaddr_in6 *six = (const void *)end;
        if (end->ss_family == AF_INET6) {
            memcpy(words, &six->sin6_addr, sizeof six->sin6_addr);
            return ntohs(six->sin6_port);
        }
        words[0] = words[1] = 0;
        words[2] = htonl(0xffff);
        words[3] = four->sin_addr.s_addr;
        return ntohs(four->sin_port);
    }

    /* Where the kernel has no ``sock_diag`` for us. Who listens on every address has connections of
     * IPv4 in the table of IPv6. */
    static int peer_in_tables(const struct sockaddr_storage *ours,
                              const struct sockaddr_storage *theirs)
    {
        uint32_t a[4], b[4];
        unsigned from = peer_words(theirs, a), to = peer_words(ours, b);
        char ends[128];
        int verdict;
        snprintf(ends, sizeof ends, ": %08X:%04X %08X:%04X ", a[3], from, b[3], to);
        /* One of IPv6 alone has no address that could stand in the first. */
        verdict = a[0] || a[1] || a[2] != htonl(0xffff)
                      ? PEER_UNKNOWN
                      : peer_in_table("/proc/self/net/tcp", ends);
        if (verdict != PEER_UNKNOWN)
            return verdict;
        snprintf(ends, sizeof ends, ": %08X%08X%08X%08X:%04X %08X%08X%08X%08X:%04X ", a[0], a[1],
                 a[2], a[3], from, b[0], b[1], b[2], b[3], to);
        return peer_in_table("/proc/self/net/tcp6", ends);
    }

    /* Who reads what is sent on a connection to this host. */
    static int front_peer(int fd)
    {
        struct sockaddr_storage ours, theirs;
        struct tcp_info state;
        socklen_t size = sizeof ours, other = sizeof theirs, length = sizeof state;
        int verdict;
        if (getsockname(fd, (struct sockaddr *)&ours, &size) < 0 ||
            getpeername(fd, (struct sockaddr *)&theirs, &other) < 0)
            /* It has been reset: nothing can be sent. */
            return errno == ENOTCONN ? PEER_GONE : PEER_UNKNOWN;
        if (ours.ss_family != AF_INET && ours.ss_family != AF_INET6)
            return PEER_UNKNOWN;
        verdict = peer_by_diag(&ours, &theirs);
        if (verdict == PEER_UNKNOWN)
            verdict = peer_in_tables(&ours, &theirs);
        if (verdict == PEER_UNKNOWN &&
            getsockopt(fd, IPPROTO_TCP, TCP_INFO, &state, &length) == 0 &&
            state.tcpi_state == TCP_CLOSE)
            /* It has been reset since. */
            verdict = PEER_GONE;
        return verdict;
    }
    """
    enum:
        #: Another account, for certain.
        PEER_STRANGE
        #: The kernel does not tell.
        PEER_UNKNOWN
    int front_peer(int fd) nogil
