"""OpenSSL for the listener: the library that Python's ``_ssl`` has loaded, found by name at run
time, so that there is one of it in the process and nothing to link to.

Loaded only where clients connect with TLS. What a function is given here are numbers of OpenSSL's
headers, which are the same in 1.1.1 and in every 3.x.
"""

import _ssl

from libc.stdint cimport int64_t, uint64_t, uintptr_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from ftstan.front.tls cimport front_tls

cdef extern from "<dlfcn.h>":
    enum:
        RTLD_NOLOAD
        RTLD_NOW
    void* dlopen(const char* path, int flags)
    void* dlsym(void* handle, const char* name)

cdef enum:
    CTRL_MSG_CALLBACK_ARG = 16
    CTRL_MODE = 33
    CTRL_SESS_CACHE_MODE = 44
    CTRL_READ_AHEAD = 41
    CTRL_CLEAR_MODE = 78
    CTRL_GROUPS = 92
    CTRL_MIN_VERSION = 123
    TLS1_2 = 0x0303
    FILETYPE_PEM = 1
    #: SSL_write may send a part, go on from another place, and idle connections keep no buffers.
    MODES = 1 | 2 | 16
    #: With it SSL_read goes on behind records without data; without it, while more of them is read
    #: ahead.
    AUTO_RETRY = 4
    #: Bytes that one call of the kernel may bring: several records.
    READ_AHEAD = 65536
    HANDSHAKE_RECORD = 22
    KEY_UPDATE = 24

#: No tickets (nothing is resumed), no compression, the server's order of ciphers, but ChaCha20 for
#: those who prefer it, and no renegotiation.
cdef uint64_t OPTIONS = 1 << 14 | 1 << 17 | 1 << 21 | 1 << 22 | 1 << 30

_NEWEST_FIRST = b"TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256"
_NAMES = (
    *("SSL_new", "SSL_free", "SSL_CTX_free", "SSL_set_fd", "SSL_set_accept_state"),
    *("SSL_do_handshake", "SSL_read", "SSL_write", "SSL_shutdown", "SSL_has_pending"),
    *("SSL_get_error", "ERR_get_error", "ERR_clear_error", "ERR_reason_error_string"),
    *("SSL_CTX_new", "TLS_server_method", "SSL_CTX_ctrl", "SSL_CTX_set_options"),
    *("SSL_CTX_set_num_tickets", "SSL_CTX_set_default_read_buffer_len"),
    *("SSL_CTX_set_cipher_list", "SSL_CTX_set_ciphersuites"),
    *("SSL_CTX_set_msg_callback", "SSL_set_read_ahead"),
    *("SSL_CTX_set_default_passwd_cb", "SSL_CTX_use_certificate_chain_file"),
    *("SSL_CTX_use_PrivateKey_file", "SSL_CTX_check_private_key"),
)

ctypedef void* (*NewContext)(void*) noexcept
ctypedef void* (*Method)() noexcept
ctypedef long (*Control)(void*, int, long, void*) noexcept
ctypedef uint64_t (*SetOptions)(void*, uint64_t) noexcept
ctypedef int (*SetCount)(void*, size_t) noexcept
ctypedef void (*SetSize)(void*, size_t) noexcept
ctypedef int (*SetText)(void*, const char*) noexcept
ctypedef int (*UseFile)(void*, const char*, int) noexcept
ctypedef int (*Check)(void*) noexcept
ctypedef void (*Seer)(int, int, int, const void*, size_t, void*, void*) noexcept nogil
ctypedef void (*SetSeer)(void*, Seer) noexcept
ctypedef void (*SetAsker)(void*, int (*asker)(char*, int, int, void*) noexcept) noexcept


cdef int no_passphrase(char* text, int size, int way, void* more) noexcept:
    """Nobody can type one in."""
    return -1


cdef void seen(
    int is_sent,
    int version,
    int kind,
    const void* data,
    size_t size,
    void* ssl,
    void* set_read_ahead,
) noexcept nogil:
    """A message of TLS. New keys cost much and bring nothing: of a client that asks for them one
    record at a time is read from then on, so that everybody else has a turn between two of them.
    """
    if not is_sent and kind == HANDSHAKE_RECORD and size > 0 and (
        (<const unsigned char*>data)[0] == KEY_UPDATE
    ):
        (<void (*)(void*, int) noexcept nogil>set_read_ahead)(ssl, 0)


cdef void* _library = NULL


cdef void* found(str name):
    """A function of the library; NULL: it has none of this name."""
    global _library
    path = getattr(_ssl, "__file__", None)
    if _library == NULL:
        # A Python with it built in has it among its own names, if it shows them.
        encoded = path.encode() if path else b""
        _library = dlopen(<const char*>encoded if path else NULL, RTLD_NOW | RTLD_NOLOAD)
        if _library == NULL:
            return NULL
    return dlsym(_library, name.encode())


def problem():
    """Why TLS cannot end in the listener; empty if it can."""
    if not _ssl.OPENSSL_VERSION.startswith("OpenSSL "):
        return f"this Python has {_ssl.OPENSSL_VERSION}, which is not OpenSSL"
    for name in _NAMES:
        if found(name) == NULL:
            return f"this Python's OpenSSL has no {name}"
    return ""


def make(*, bytes cert, bytes key, bytes ciphers, bytes groups, int64_t timeout_ms):
    """What a listener needs for TLS (``Front.use_tls`` takes it over), or 0 and why there is none.

    ``cert`` and ``key`` are paths of PEM files, the other two lists in OpenSSL's words.
    """
    cdef front_tls* tls = <front_tls*>malloc(sizeof(front_tls))
    if tls == NULL:
        raise MemoryError
    memset(tls, 0, sizeof(front_tls))
    tls.timeout = timeout_ms
    tls.make = <void* (*)(void*) noexcept nogil>found("SSL_new")
    tls.drop = <void (*)(void*) noexcept nogil>found("SSL_free")
    tls.drop_context = <void (*)(void*) noexcept nogil>found("SSL_CTX_free")
    tls.set_fd = <int (*)(void*, int) noexcept nogil>found("SSL_set_fd")
    tls.set_accept_state = <void (*)(void*) noexcept nogil>found("SSL_set_accept_state")
    tls.do_handshake = <int (*)(void*) noexcept nogil>found("SSL_do_handshake")
    tls.do_read = <int (*)(void*, void*, int) noexcept nogil>found("SSL_read")
    tls.do_write = <int (*)(void*, const void*, int) noexcept nogil>found("SSL_write")
    tls.do_shutdown = <int (*)(void*) noexcept nogil>found("SSL_shutdown")
    tls.has_pending = <int (*)(const void*) noexcept nogil>found("SSL_has_pending")
    tls.get_error = <int (*)(const void*, int) noexcept nogil>found("SSL_get_error")
    tls.take_error = <unsigned long (*)() noexcept nogil>found("ERR_get_error")
    tls.clear_errors = <void (*)() noexcept nogil>found("ERR_clear_error")
    tls.reason_of = <const char* (*)(unsigned long) noexcept nogil>found("ERR_reason_error_string")
    # What Python has left behind on this thread is not ours to report.
    tls.clear_errors()
    failed = filled(tls, cert, key, ciphers, groups)
    if not failed:
        return <uintptr_t>tls, ""
    error = tls.take_error()
    reason = tls.reason_of(error) if error != 0 else NULL
    words = (<bytes>reason).decode("ascii", "replace") if reason != NULL else "refused"
    tls.clear_errors()
    if tls.context != NULL:
        tls.drop_context(tls.context)
    free(tls)
    return 0, f"{failed}: {words}"


def drop(uintptr_t made):
    """Forget what ``make`` has made, which no listener has taken."""
    cdef front_tls* tls = <front_tls*>made
    tls.drop_context(tls.context)
    free(tls)


cdef str filled(front_tls* tls, bytes cert, bytes key, bytes ciphers, bytes groups):
    """Make the context; returns what OpenSSL has refused, empty if nothing."""
    cdef bytes newest = _NEWEST_FIRST
    control = <Control>found("SSL_CTX_ctrl")
    use_key = <UseFile>found("SSL_CTX_use_PrivateKey_file")
    tls.context = (<NewContext>found("SSL_CTX_new"))((<Method>found("TLS_server_method"))())
    context = tls.context
    if context == NULL:
        return "no context"
    (<SetOptions>found("SSL_CTX_set_options"))(context, OPTIONS)
    control(context, CTRL_MODE, MODES, NULL)
    control(context, CTRL_CLEAR_MODE, AUTO_RETRY, NULL)
    control(context, CTRL_SESS_CACHE_MODE, 0, NULL)
    control(context, CTRL_READ_AHEAD, 1, NULL)
    (<SetSize>found("SSL_CTX_set_default_read_buffer_len"))(context, READ_AHEAD)
    control(context, CTRL_MSG_CALLBACK_ARG, 0, found("SSL_set_read_ahead"))
    (<SetSeer>found("SSL_CTX_set_msg_callback"))(context, seen)
    (<SetAsker>found("SSL_CTX_set_default_passwd_cb"))(context, no_passphrase)
    if (<SetCount>found("SSL_CTX_set_num_tickets"))(context, 0) != 1:
        return "tickets"
    if control(context, CTRL_MIN_VERSION, TLS1_2, NULL) != 1:
        return "TLS 1.2"
    if (<SetText>found("SSL_CTX_set_ciphersuites"))(context, newest) != 1:
        return "cipher suites of TLS 1.3"
    if (<SetText>found("SSL_CTX_set_cipher_list"))(context, ciphers) != 1:
        return "cipher suites"
    if control(context, CTRL_GROUPS, 0, <char*>groups) != 1:
        return "curves"
    if (<SetText>found("SSL_CTX_use_certificate_chain_file"))(context, cert) != 1:
        return "certificate"
    if use_key(context, key, FILETYPE_PEM) != 1:
        return "private key"
    if (<Check>found("SSL_CTX_check_private_key"))(context) != 1:
        return "private key"
    return ""
