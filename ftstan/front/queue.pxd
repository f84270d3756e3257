"""Bytes that wait, in one piece: put at the end, taken at the beginning."""

from libc.stdlib cimport free, malloc
from libc.string cimport memcpy


cdef struct Queue:
    char* data
    size_t start
    size_t end
    size_t size


cdef inline size_t waiting(const Queue* q) noexcept nogil:
    """Bytes that wait."""
    return q.end - q.start


cdef inline char* first(const Queue* q) noexcept nogil:
    """Where the first of them is."""
    return q.data + q.start


cdef inline void drop(Queue* q) noexcept nogil:
    """Forget them, and the memory."""
    free(q.data)
    q.data = NULL
    q.start = q.end = q.size = 0


cdef inline void take(Queue* q, size_t n) noexcept nogil:
    """The first ``n`` have been used."""
    q.start += n
    if q.start == q.end:
        q.start = q.end = 0


cdef inline char* room(Queue* q, size_t n) noexcept nogil:
    """Where ``n`` more bytes can be put behind the last one; NULL: there is no memory.

    Add them to ``end`` when they are there.
    """
    cdef size_t held = q.end - q.start
    cdef size_t size
    cdef char* data
    if q.size - q.end >= n:
        return q.data + q.end
    if q.start >= held and q.size - held >= n:
        memcpy(q.data, q.data + q.start, held)
    else:
        size = q.size * 2 if q.size > 0 else 1024
        while size - held < n:
            size *= 2
        data = <char*>malloc(size)
        if data == NULL:
            return NULL
        if held > 0:
            memcpy(data, q.data + q.start, held)
        free(q.data)
        q.data = data
        q.size = size
    q.start = 0
    q.end = held
    return q.data + held


cdef inline bint put(Queue* q, const char* data, size_t n) noexcept nogil:
    """Add ``n`` bytes; false: there is no memory."""
    cdef char* place
    if n == 0:
        return True
    place = room(q, n)
    if place == NULL:
        return False
    memcpy(place, data, n)
    q.end += n
    return True
