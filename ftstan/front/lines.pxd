"""Lines of the NATS protocol, cut into their words."""

cdef enum Kind:
    #: What has come is the beginning of a line, or nothing.
    PARTIAL
    #: The NATS server will refuse it, and end the connection.
    WRONG
    #: A line of a client that says nothing: +OK.
    OTHER
    CONNECT
    PING
    PONG
    SUB
    UNSUB
    #: PUB of a client, MSG of a server.
    MESSAGE
    #: HPUB of a client, HMSG of a server.
    HEADED
    OK
    ERROR
    INFO


cdef struct Line:
    Kind kind
    #: Bytes with its end.
    size_t size
    #: What stands behind the verb, and its bytes.
    const char* argument
    size_t argument_size
    #: Of SUB, PUB and MSG.
    const char* subject
    size_t subject_size
    #: Of SUB, UNSUB and MSG.
    const char* sid
    size_t sid_size
    #: The reply subject of a message, the queue of a SUB; size 0: none.
    const char* other
    size_t other_size
    #: Bytes of a message behind the line, without the last two; how many an UNSUB leaves.
    long long number
    #: Of an HPUB of the core: bytes of the headers among them; -1: they cannot be so many.
    long long head


cdef void read_client_line(
    const char* data, size_t size, bint is_core, Line* line
) noexcept nogil
cdef void read_server_line(const char* data, size_t size, Line* line) noexcept nogil
