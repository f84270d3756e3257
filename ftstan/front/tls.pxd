"""TLS of one client, through functions of OpenSSL that ``openssl.pyx`` has found.

Only what the listener's thread calls, and none of it by name: without TLS nothing of OpenSSL is
needed, and nothing is linked to it. The errors of OpenSSL are kept for each thread until somebody
takes them, and ``SSL_get_error`` mistakes an old one for its own: every failed call here leaves
none behind.
"""

from libc.stdint cimport int64_t

cdef extern from *:
    """
    #ifndef FRONT_TLS
    #define FRONT_TLS
    #include <errno.h>
    #include <signal.h>
    #include <stdint.h>
    #include <sys/types.h>

    enum { FRONT_SSL_WANT_READ = 2, FRONT_SSL_WANT_WRITE = 3, FRONT_SSL_ZERO_RETURN = 6 };

    typedef struct front_tls {
        void *context;
        int64_t timeout;
        void *(*make)(void *context);
        void (*drop)(void *ssl);
        void (*drop_context)(void *context);
        int (*set_fd)(void *ssl, int fd);
        void (*set_accept_state)(void *ssl);
        int (*do_handshake)(void *ssl);
        int (*do_read)(void *ssl, void *data, int size);
        int (*do_write)(void *ssl, const void *data, int size);
        int (*do_shutdown)(void *ssl);
        int (*has_pending)(const void *ssl);
        int (*get_error)(const void *ssl, int result);
        unsigned long (*take_error)(void);
        void (*clear_errors)(void);
        const char *(*reason_of)(unsigned long error);
    } front_tls;

    static inline void *front_tls_accept(const front_tls *tls, int fd)
    {
        void *ssl = tls->make(tls->context);
        if (ssl != NULL && tls->set_fd(ssl, fd) == 1) {
            tls->set_accept_state(ssl);
            return ssl;
        }
        if (ssl != NULL)
            tls->drop(ssl);
        tls->clear_errors();
        return NULL;
    }

    /* 1: it is done, 0: not yet, -1: it has failed, for this reason. */
    static inline int front_tls_shake(const front_tls *tls, void *ssl, int *wants_write,
                                      const char **reason)
    {
        int done = tls->do_handshake(ssl), why;
        unsigned long error;
        *wants_write = 0;
        if (done == 1) {
            tls->clear_errors();
            return 1;
        }
        why = tls->get_error(ssl, done);
        error = tls->take_error();
        tls->clear_errors();
        if (why == FRONT_SSL_WANT_READ || why == FRONT_SSL_WANT_WRITE) {
            *wants_write = why == FRONT_SSL_WANT_WRITE;
            return 0;
        }
        *reason = error != 0 ? tls->reason_of(error) : NULL;
        if (*reason == NULL)
            *reason = "EOF";
        return -1;
    }

    /* As recv. ``more``: it is to be called again without waiting for the descriptor. A record
       without a byte of the client's ends a call: a flood of them must not keep the thread. Only
       the kernel says EAGAIN, so its error tells such a record from the end of what has come. */
    static inline ssize_t front_tls_read(const front_tls *tls, void *ssl, char *data, size_t size,
                                         int *more, int *wants_write)
    {
        size_t got = 0;
        int n, why, error;
        *more = *wants_write = 0;
        while (got < size) {
            errno = 0;
            n = tls->do_read(ssl, data + got, (int)(size - got));
            error = errno;
            if (n > 0) {
                got += (size_t)n;
                if (tls->has_pending(ssl))
                    continue;
                return (ssize_t)got;
            }
            why = tls->get_error(ssl, n);
            tls->clear_errors();
            if (why == FRONT_SSL_WANT_READ || why == FRONT_SSL_WANT_WRITE) {
                *wants_write = why == FRONT_SSL_WANT_WRITE;
                *more = why == FRONT_SSL_WANT_READ && error != EAGAIN;
                errno = EAGAIN;
                return got > 0 ? (ssize_t)got : -1;
            }
            if (got == 0 && why != FRONT_SSL_ZERO_RETURN)
                errno = ECONNRESET;
            if (got == 0)
                return why == FRONT_SSL_ZERO_RETURN ? 0 : -1;
            /* The end is told by the next call. */
            break;
        }
        *more = 1;
        return (ssize_t)got;
    }

    /* As send. After EAGAIN the next call must begin with the same bytes, and no fewer.
       ``wants_read``: it waits for what the client has begun to send, a key update. */
    static inline ssize_t front_tls_write(const front_tls *tls, void *ssl, const char *data,
                                          size_t size, int *wants_read)
    {
        int n = tls->do_write(ssl, data, size > 1 << 30 ? 1 << 30 : (int)size), why;
        *wants_read = 0;
        if (n > 0)
            return n;
        why = tls->get_error(ssl, n);
        tls->clear_errors();
        *wants_read = why == FRONT_SSL_WANT_READ;
        errno = why == FRONT_SSL_WANT_READ || why == FRONT_SSL_WANT_WRITE ? EAGAIN : EPIPE;
        return -1;
    }

    /* Tell the client that this is the end, if that can be said at once. */
    static inline void front_tls_close(const front_tls *tls, void *ssl)
    {
        tls->do_shutdown(ssl);
        tls->clear_errors();
    }

    /* OpenSSL writes to a socket without MSG_NOSIGNAL: the signal must not end this process. It is
       sent to the thread that writes, and stays with it. */
    static inline void front_tls_block_sigpipe(void)
    {
        sigset_t set;
        sigemptyset(&set);
        sigaddset(&set, SIGPIPE);
        pthread_sigmask(SIG_BLOCK, &set, NULL);
    }
    #endif
    """
    ctypedef struct front_tls:
        void* context
        #: Of a handshake (ms).
        int64_t timeout
        void* (*make)(void*) noexcept nogil
        void (*drop)(void*) noexcept nogil
        void (*drop_context)(void*) noexcept nogil
        int (*set_fd)(void*, int) noexcept nogil
        void (*set_accept_state)(void*) noexcept nogil
        int (*do_handshake)(void*) noexcept nogil
        int (*do_read)(void*, void*, int) noexcept nogil
        int (*do_write)(void*, const void*, int) noexcept nogil
        int (*do_shutdown)(void*) noexcept nogil
        int (*has_pending)(const void*) noexcept nogil
        int (*get_error)(const void*, int) noexcept nogil
        unsigned long (*take_error)() noexcept nogil
        void (*clear_errors)() noexcept nogil
        const char* (*reason_of)(unsigned long) noexcept nogil
    void* front_tls_accept(const front_tls* tls, int fd) nogil
    int front_tls_shake(
        const front_tls* tls, void* ssl, int* wants_write, const char** reason
    ) nogil
    ssize_t front_tls_read(
        const front_tls* tls, void* ssl, char* data, size_t size, int* more, int* wants_write
    ) nogil
    ssize_t front_tls_write(
        const front_tls* tls, void* ssl, const char* data, size_t size, int* wants_read
    ) nogil
    void front_tls_close(const front_tls* tls, void* ssl) nogil
    void front_tls_block_sigpipe() nogil


#: How far TLS of a client is.
cdef enum Tls:
    #: There is none.
    PLAIN
    #: The NATS server has not greeted it.
    GREETING
    SHAKING
    OPEN
    OVER
