"""Lines of the NATS protocol, cut into their words (``docs/compat/nats.md``).

What a NATS server refuses is ``WRONG`` here, so that it can be left to the server to say so.
Whatever is taken for a message or a subscription is one for the server as well: a difference would
be two opinions of where the next line begins.

A carriage return that does not end a line is part of a word for a NATS server: it hands a message
with such a subject on to who subscribes. So it is part of a word in what the server says. What it
makes of one that a client sends is its own affair: that is ``WRONG``.
"""

from libc.string cimport memchr

cdef enum:
    #: Of a message's size: more the server does not read either.
    MOST_DIGITS = 9
    #: Of a SUB, a MSG with its reply subject, and HMSG.
    MOST_WORDS = 5


cdef struct Words:
    int count
    const char* word[MOST_WORDS]
    size_t size[MOST_WORDS]


cdef inline bint is_blank(char c) noexcept nogil:
    return c == c' ' or c == c'\t'


cdef inline char lower(char c) noexcept nogil:
    return c | 0x20 if c'A' <= c <= c'Z' else c


cdef size_t begins(const char* data, size_t size, const char* verb, size_t length) noexcept nogil:
    """How many bytes of ``verb`` are there; all of ``size`` or all of ``length``, else 0."""
    cdef size_t i
    cdef size_t n = size if size < length else length
    for i in range(n):
        if lower(data[i]) != verb[i]:
            return 0
    return n


cdef bint cut(const char* data, size_t size, Words* words) noexcept nogil:
    """Cut into words; false: there are too many."""
    cdef size_t i = 0
    cdef size_t start
    words.count = 0
    while True:
        while i < size and is_blank(data[i]):
            i += 1
        if i == size:
            return True
        if words.count == MOST_WORDS:
            return False
        start = i
        while i < size and not is_blank(data[i]):
            i += 1
        words.word[words.count] = data + start
        words.size[words.count] = i - start
        words.count += 1


cdef long long number_of(const char* data, size_t size) noexcept nogil:
    """A number without a sign; -1: it is none."""
    cdef long long number = 0
    cdef size_t i
    if size == 0 or size > MOST_DIGITS:
        return -1
    for i in range(size):
        if not c'0' <= data[i] <= c'9':
            return -1
        number = number * 10 + (data[i] - c'0')
    return number


cdef bint is_verb(
    const char* data, size_t size, const char* verb, size_t length, Kind kind, Line* line
) noexcept nogil:
    """Whether the line begins with ``verb``; it may be there in part only."""
    cdef size_t n = begins(data, size, verb, length)
    if n == 0:
        return False
    if n < length:
        line.kind = PARTIAL
        return True
    line.kind = kind
    line.argument = data + length
    return True


cdef void end_line(const char* data, size_t size, Line* line) noexcept nogil:
    """Where the line ends, and its argument."""
    cdef const char* end
    cdef const char* last
    end = <const char*>memchr(data, c'\n', size)
    last = end if end != NULL else data + size
    # The verb may be all that has come.
    while line.argument < last and is_blank(line.argument[0]):
        line.argument += 1
    line.argument_size = last - line.argument
    if end == NULL:
        line.size = 0
        return
    line.size = end - data + 1
    if line.argument_size > 0 and line.argument[line.argument_size - 1] == c'\r':
        line.argument_size -= 1


cdef void set_subject(Line* line, Words* words, int at) noexcept nogil:
    line.subject = words.word[at]
    line.subject_size = words.size[at]


cdef void set_sid(Line* line, Words* words, int at) noexcept nogil:
    line.sid = words.word[at]
    line.sid_size = words.size[at]


cdef void set_other(Line* line, Words* words, int at) noexcept nogil:
    line.other = words.word[at]
    line.other_size = words.size[at]


cdef void begin(Line* line) noexcept nogil:
    line.kind = WRONG
    line.size = line.argument_size = line.subject_size = line.sid_size = line.other_size = 0
    line.argument = line.subject = line.sid = line.other = NULL
    line.number = line.head = 0


cdef bint needs_blank(const char* data, size_t size, Line* line) noexcept nogil:
    """Whether something else than a blank stands behind the verb."""
    return line.argument < data + size and not is_blank(line.argument[0])


cdef bint has_return(Line* line) noexcept nogil:
    """Whether a carriage return stands in front of the end."""
    return (
        line.argument_size > 0 and memchr(line.argument, c'\r', line.argument_size) != NULL
    )


cdef void read_client_line(
    const char* data, size_t size, bint is_core, Line* line
) noexcept nogil:
    """The first line of ``data``, which a client has sent, or the core: that answers to whatever
    reply subject the server has handed it. With ``PARTIAL``, ``argument_size`` says how much of its
    argument has come.
    """
    cdef Words words
    begin(line)
    if size == 0:
        line.kind = PARTIAL
        return
    if is_verb(data, size, b"pub", 3, MESSAGE, line) or is_verb(
        data, size, b"hpub", 4, HEADED, line
    ) or is_verb(data, size, b"sub", 3, SUB, line) or is_verb(
        data, size, b"unsub", 5, UNSUB, line
    ) or is_verb(data, size, b"connect", 7, CONNECT, line):
        if line.kind == PARTIAL:
            return
        if needs_blank(data, size, line):
            line.kind = WRONG
            return
    elif is_verb(data, size, b"ping", 4, PING, line) or is_verb(data, size, b"pong", 4, PONG, line):
        if line.kind == PARTIAL:
            return
    elif is_verb(data, size, b"+ok", 3, OTHER, line):
        if line.kind == PARTIAL:
            return
    else:
        return
    end_line(data, size, line)
    if line.size == 0:
        line.kind = PARTIAL
        return
    if not is_core and has_return(line):
        line.kind = WRONG
        return
    if line.kind == CONNECT or line.kind == PING or line.kind == PONG or line.kind == OTHER:
        return
    if not cut(line.argument, line.argument_size, &words):
        line.kind = WRONG
    elif line.kind == SUB and 2 <= words.count <= 3:
        set_subject(line, &words, 0)
        set_sid(line, &words, words.count - 1)
        if words.count == 3:
            set_other(line, &words, 1)
    elif line.kind == UNSUB and 1 <= words.count <= 2:
        set_sid(line, &words, 0)
        if words.count == 2:
            # What is no number the server takes for none.
            line.number = number_of(words.word[1], words.size[1])
    elif line.kind == MESSAGE and 2 <= words.count <= 3:
        set_subject(line, &words, 0)
        if words.count == 3:
            set_other(line, &words, 1)
        line.number = number_of(words.word[words.count - 1], words.size[words.count - 1])
        if line.number < 0:
            line.kind = WRONG
    elif line.kind == HEADED and 3 <= words.count <= 4:
        set_subject(line, &words, 0)
        line.number = number_of(words.word[words.count - 1], words.size[words.count - 1])
        if line.number < 0:
            line.kind = WRONG
        if is_core:
            # Of a client it is for the server to read.
            line.head = number_of(words.word[words.count - 2], words.size[words.count - 2])
            if line.head > line.number:
                line.head = -1
            if words.count == 4:
                set_other(line, &words, 1)
    else:
        line.kind = WRONG


cdef void read_server_line(const char* data, size_t size, Line* line) noexcept nogil:
    """The first line of ``data``, which the server has sent."""
    cdef Words words
    begin(line)
    if size == 0:
        line.kind = PARTIAL
        return
    if not (
        is_verb(data, size, b"msg", 3, MESSAGE, line)
        or is_verb(data, size, b"hmsg", 4, HEADED, line)
        or is_verb(data, size, b"ping", 4, PING, line)
        or is_verb(data, size, b"pong", 4, PONG, line)
        or is_verb(data, size, b"+ok", 3, OK, line)
        or is_verb(data, size, b"-err", 4, ERROR, line)
        or is_verb(data, size, b"info", 4, INFO, line)
    ):
        return
    if line.kind == PARTIAL:
        return
    if (line.kind == MESSAGE or line.kind == HEADED) and needs_blank(data, size, line):
        line.kind = WRONG
        return
    end_line(data, size, line)
    if line.size == 0:
        line.kind = PARTIAL
        return
    if line.kind != MESSAGE and line.kind != HEADED:
        return
    if not cut(line.argument, line.argument_size, &words) or words.count < (
        3 if line.kind == MESSAGE else 4
    ):
        line.kind = WRONG
        return
    set_subject(line, &words, 0)
    set_sid(line, &words, 1)
    if words.count > (3 if line.kind == MESSAGE else 4):
        set_other(line, &words, 2)
    line.number = number_of(words.word[words.count - 1], words.size[words.count - 1])
    if line.number < 0:
        line.kind = WRONG


_NAMES = {
    PARTIAL: "partial",
    WRONG: "wrong",
    OTHER: "other",
    CONNECT: "connect",
    PING: "ping",
    PONG: "pong",
    SUB: "sub",
    UNSUB: "unsub",
    MESSAGE: "message",
    HEADED: "headed",
    OK: "ok",
    ERROR: "error",
    INFO: "info",
}


def first_line(data: bytes, *, of_server: bool = False):
    """The first line of ``data``: its kind, its size, subject, sid, reply or queue, and number.

    For tests; subject and the like are empty where the line has none.
    """
    cdef Line line
    cdef const char* start = data
    if of_server:
        read_server_line(start, len(data), &line)
    else:
        read_client_line(start, len(data), False, &line)
    return (
        _NAMES[line.kind],
        line.size,
        line.subject[: line.subject_size] if line.subject_size else b"",
        line.sid[: line.sid_size] if line.sid_size else b"",
        line.other[: line.other_size] if line.other_size else b"",
        line.number,
    )
