"""What the listener asks of the system: sockets, ``epoll``, a clock."""

from libc.stdint cimport int64_t, uint32_t, uint64_t

cdef extern from *:
    """
    #include <arpa/inet.h>
    #include <errno.h>
    #include <netinet/in.h>
    #include <netinet/tcp.h>
    #include <stdio.h>
    #include <string.h>
    #include <strings.h>
    #include <sys/epoll.h>
    #include <sys/resource.h>
    #include <sys/socket.h>
    #include <time.h>
    #include <unistd.h>

    /* An address and its port as text; false: of another family. */
    static inline int front_address(int fd, int peer, char *text, int *port, int *six)
    {
        struct sockaddr_storage at;
        socklen_t size = sizeof at;
        if ((peer ? getpeername : getsockname)(fd, (struct sockaddr *)&at, &size) < 0)
            return 0;
        if (at.ss_family == AF_INET) {
            struct sockaddr_in *in = (struct sockaddr_in *)&at;
            *six = 0;
            *port = ntohs(in->sin_port);
            return inet_ntop(AF_INET, &in->sin_addr, text, INET6_ADDRSTRLEN) != NULL;
        }
        if (at.ss_family == AF_INET6) {
            struct sockaddr_in6 *in = (struct sockaddr_in6 *)&at;
            *port = ntohs(in->sin6_port);
            *six = !IN6_IS_ADDR_V4MAPPED(&in->sin6_addr);
            if (*six)
                return inet_ntop(AF_INET6, &in->sin6_addr, text, INET6_ADDRSTRLEN) != NULL;
            return inet_ntop(AF_INET, &in->sin6_addr.s6_addr[12], text, INET6_ADDRSTRLEN) != NULL;
        }
        return 0;
    }

    /* What tells the NATS server whose connection it is. */
    static inline int front_proxy_line(int fd, char *line, size_t size)
    {
        char from[INET6_ADDRSTRLEN], to[INET6_ADDRSTRLEN];
        int from_port, to_port, six, same;
        if (!front_address(fd, 1, from, &from_port, &six) ||
            !front_address(fd, 0, to, &to_port, &same) || six != same)
            return snprintf(line, size, "PROXY UNKNOWN\\r\\n");
        return snprintf(line, size, "PROXY TCP%c %s %s %d %d\\r\\n", six ? '6' : '4', from, to,
                        from_port, to_port);
    }

    /* Whether a client's descriptor had better be given back: clients have half of those that the
       process may have, and never the last ones. The kernel gives the lowest that is free. */
    static inline int front_is_scarce(int fd, uint64_t used, unsigned reserve)
    {
        struct rlimit limit;
        if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur == RLIM_INFINITY)
            return 0;
        if (reserve > limit.rlim_cur / 4)
            reserve = limit.rlim_cur / 4;
        return (rlim_t)fd >= limit.rlim_cur - reserve || used >= limit.rlim_cur / 2;
    }

    static inline void front_prepare(int fd)
    {
        int on = 1;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    }

    /* Tell the other side at once that all has come: it may wait with what it sends next. */
    static inline void front_acknowledge(int fd)
    {
        int on = 1;
        setsockopt(fd, IPPROTO_TCP, TCP_QUICKACK, &on, sizeof on);
    }

    static inline int front_accept(int listening)
    {
        int fd = accept4(listening, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0)
            front_prepare(fd);
        return fd;
    }

    /* Connect to a port of this host; -1: nobody is there. */
    static inline int front_connect(int port)
    {
        struct sockaddr_in at;
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (fd < 0)
            return -1;
        memset(&at, 0, sizeof at);
        at.sin_family = AF_INET;
        at.sin_port = htons(port);
        at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        front_prepare(fd);
        if (connect(fd, (struct sockaddr *)&at, sizeof at) < 0 && errno != EINPROGRESS) {
            close(fd);
            return -1;
        }
        return fd;
    }

    /* The kernel keeps about so many bytes between two ends of a socket pair, and as many for its
       own records of them. */
    static inline void front_hold(int fd, int bytes)
    {
        setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
    }

    static inline int front_watch(int poll, int how, int fd, uint32_t events, uint64_t data)
    {
        struct epoll_event event;
        event.events = events;
        event.data.u64 = data;
        return epoll_ctl(poll, how, fd, &event);
    }

    static inline int64_t front_ms(void)
    {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
    }

    /* Where a text stands in a line, in any case; NULL: nowhere. */
    static inline const char *front_find(const char *data, size_t size, const char *text)
    {
        size_t length = strlen(text);
        for (; size >= length; data++, size--)
            if (strncasecmp(data, text, length) == 0)
                return data + length;
        return NULL;
    }
    """
    enum:
        EPOLLIN
        EPOLLOUT
        EPOLLERR
        EPOLLHUP
        EPOLLRDHUP
        EPOLL_CTL_ADD
        EPOLL_CTL_MOD
        EPOLL_CTL_DEL
        EPOLL_CLOEXEC
        MSG_NOSIGNAL
        MSG_PEEK
        SHUT_WR
    ctypedef union epoll_data:
        uint64_t u64
    struct epoll_event:
        uint32_t events
        epoll_data data
    int epoll_create1(int flags) nogil
    int epoll_wait(int poll, epoll_event* events, int most, int timeout) nogil
    ssize_t recv(int fd, void* data, size_t size, int flags) nogil
    ssize_t send(int fd, const void* data, size_t size, int flags) nogil
    int shutdown(int fd, int how) nogil
    int close(int fd) nogil
    ssize_t read(int fd, void* data, size_t size) nogil
    ssize_t write(int fd, const void* data, size_t size) nogil
    int snprintf(char* text, size_t size, const char* format, ...) nogil
    int front_address(int fd, int peer, char* text, int* port, int* six) nogil
    int front_proxy_line(int fd, char* line, size_t size) nogil
    bint front_is_scarce(int fd, uint64_t used, unsigned int reserve) nogil
    void front_acknowledge(int fd) nogil
    int front_accept(int listening) nogil
    int front_connect(int port) nogil
    void front_hold(int fd, int bytes) nogil
    int front_watch(int poll, int how, int fd, uint32_t events, uint64_t data) nogil
    int64_t front_ms() nogil
    const char* front_find(const char* data, size_t size, const char* text) nogil
