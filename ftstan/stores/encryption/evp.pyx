"""Both ciphers of a channel by OpenSSL's EVP, from buffer to buffer: no object a message, no copy.

The functions are those of the libcrypto that Python itself has loaded for its hashes or for TLS:
one library, one version, whose updates reach us as well. They are looked up by name; where one is
missing, or does not do what it should to a known message, ``usable`` says no, and the library of
``cipher`` does the same work slower.

A context keeps the expanded key of a channel; each message gives it a nonce. One thread at a time.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE

import os
from importlib import import_module

cdef extern from "<dlfcn.h>" nogil:
    int RTLD_NOW
    int RTLD_NOLOAD
    void* dlopen(const char* name, int flags)
    void* dlsym(void* handle, const char* name)

ctypedef void* (*New)() noexcept nogil
ctypedef void (*Free)(void*) noexcept nogil
ctypedef int (*Init)(
    void*, const void*, void*, const unsigned char*, const unsigned char*
) noexcept nogil
ctypedef int (*Update)(
    void*, unsigned char*, int*, const unsigned char*, int
) noexcept nogil
ctypedef int (*Final)(void*, unsigned char*, int*) noexcept nogil
ctypedef int (*Ctrl)(void*, int, int, void*) noexcept nogil
ctypedef const void* (*Kind)() noexcept nogil

cdef struct Library:
    New new_context
    Free free_context
    Init encrypt_init
    Update encrypt_update
    Final encrypt_final
    Init decrypt_init
    Update decrypt_update
    Final decrypt_final
    Ctrl control
    Kind aes
    Kind chacha

cdef enum:
    _NONCE = 12
    _TAG = 16
    _HEAD = 13
    _OVERHEAD = 29
    _KEY = 32
    #: EVP_CTRL_AEAD_GET_TAG and EVP_CTRL_AEAD_SET_TAG.
    _GET_TAG = 0x10
    _SET_TAG = 0x11
    #: Lengths are ints there.
    _MOST = 0x7FFFFFFF

cdef Library lib
cdef object _usable = None


cdef bint find(void* handle) noexcept:
    """Whether all of them are there."""
    lib.new_context = <New>dlsym(handle, "EVP_CIPHER_CTX_new")
    lib.free_context = <Free>dlsym(handle, "EVP_CIPHER_CTX_free")
    lib.encrypt_init = <Init>dlsym(handle, "EVP_EncryptInit_ex")
    lib.encrypt_update = <Update>dlsym(handle, "EVP_EncryptUpdate")
    lib.encrypt_final = <Final>dlsym(handle, "EVP_EncryptFinal_ex")
    lib.decrypt_init = <Init>dlsym(handle, "EVP_DecryptInit_ex")
    lib.decrypt_update = <Update>dlsym(handle, "EVP_DecryptUpdate")
    lib.decrypt_final = <Final>dlsym(handle, "EVP_DecryptFinal_ex")
    lib.control = <Ctrl>dlsym(handle, "EVP_CIPHER_CTX_ctrl")
    lib.aes = <Kind>dlsym(handle, "EVP_aes_256_gcm")
    lib.chacha = <Kind>dlsym(handle, "EVP_chacha20_poly1305")
    return (
        lib.new_context != NULL
        and lib.free_context != NULL
        and lib.encrypt_init != NULL
        and lib.encrypt_update != NULL
        and lib.encrypt_final != NULL
        and lib.decrypt_init != NULL
        and lib.decrypt_update != NULL
        and lib.decrypt_final != NULL
        and lib.control != NULL
        and lib.aes != NULL
        and lib.chacha != NULL
    )


cdef bint load():
    """Whether one of Python's own modules has brought a libcrypto with all of it."""
    cdef void* handle
    for name in ("_hashlib", "_ssl"):
        try:
            path = os.fsencode(import_module(name).__file__)
        except (ImportError, AttributeError):
            # Python was built without it, or has it within.
            continue
        # Loaded already. A look-up in it goes through the libraries that it needs.
        handle = dlopen(path, RTLD_NOW | RTLD_NOLOAD)
        if handle != NULL and find(handle):
            return True
    return False


def usable():
    """Whether ``Keys`` can be used. It is looked up once."""
    global _usable
    if _usable is None:
        _usable = load() and proven()
    return _usable


cdef bint proven():
    """Whether both ciphers make the records of ``docs/compat/encryption.md`` and open them."""
    key = bytes.fromhex("5e9e7bb8c8fd4571cef7ea6683b1b6fdf883488b242ab5f28433711b775cd6e3")
    nonce = bytes.fromhex("5db4813b0000000000000001")
    known = {
        1: "7720e2eee679bdb60d7cb819a28e09cc189027e485",
        2: "de8f8ffe3c26c1aeacb21b33751e15e0db0067addc",
    }
    cdef Keys keys
    try:
        keys = Keys([key])
        for code, sealed in known.items():
            record = bytes([code]) + nonce + bytes.fromhex(sealed)
            spoiled = record[:13] + bytes([record[13] ^ 1]) + record[14:]
            if (
                keys.encrypt(code, nonce, b"hello") != bytes.fromhex(sealed)
                or keys.decrypt(record) != b"hello"
                or keys.decrypt(spoiled) is not None
            ):
                return False
    except (RuntimeError, MemoryError):
        return False
    return True


cdef void* context(int code, bytes key, bint opens) except NULL:
    """A context that has its key."""
    cdef const void* kind = lib.aes() if code == 1 else lib.chacha()
    cdef void* made
    cdef int done
    if PyBytes_GET_SIZE(key) != _KEY:
        raise ValueError("a key of 32 bytes")
    made = lib.new_context()
    if made == NULL:
        raise MemoryError
    done = (lib.decrypt_init if opens else lib.encrypt_init)(
        made, kind, NULL, <const unsigned char*>PyBytes_AS_STRING(key), NULL
    )
    if done != 1:
        lib.free_context(made)
        raise RuntimeError("OpenSSL does not take the key")
    return made


cdef class Opener:
    """One key of one cipher, to decrypt."""

    cdef void* ctx

    def __cinit__(self, int code, bytes key):
        self.ctx = context(code, key, True)

    def __dealloc__(self):
        if self.ctx != NULL:
            lib.free_context(self.ctx)

    cdef bint open(self, const unsigned char* record, size_t n, unsigned char* to) noexcept:
        """Whether it decrypts a whole record; ``to`` has room for ``n - 29`` bytes, and holds
        nothing that may be used if not.
        """
        cdef int got = 0
        cdef size_t size = n - _OVERHEAD
        cdef unsigned char[16] tail
        if lib.decrypt_init(self.ctx, NULL, NULL, NULL, record + 1) != 1:
            return False
        if lib.control(self.ctx, _SET_TAG, _TAG, <void*>(record + n - _TAG)) != 1:
            return False
        if size and (
            lib.decrypt_update(self.ctx, to, &got, record + _HEAD, <int>size) != 1
            or <size_t>got != size
        ):
            return False
        return lib.decrypt_final(self.ctx, tail, &got) == 1


cdef class Keys:
    """The keys of one channel, the writing one first: 32 bytes each, the same for both ciphers."""

    def __cinit__(self, keys):
        self._keys = list(keys)
        self._sealer = NULL
        self._sealing = 0
        # By the code of the cipher; the one that opened the last record is tried first.
        self._openers = [None, None, None]

    def __dealloc__(self):
        if self._sealer != NULL:
            lib.free_context(self._sealer)

    cdef int seal(
        self, int code, const char* nonce, const char* data, size_t n, char* to
    ) except -1:
        """Write ciphertext and tag, ``n + 16`` bytes, to ``to``. Raises ``RuntimeError``."""
        cdef int got = 0
        cdef int last = 0
        if self._sealing != code:
            if self._sealer != NULL:
                lib.free_context(self._sealer)
                self._sealer = NULL
            self._sealer = context(code, self._keys[0], False)
            self._sealing = code
        if n > _MOST:
            raise ValueError("a payload of 2 GiB or more")
        if (
            lib.encrypt_init(self._sealer, NULL, NULL, NULL, <const unsigned char*>nonce) != 1
            or lib.encrypt_update(
                self._sealer, <unsigned char*>to, &got, <const unsigned char*>data, <int>n
            ) != 1
            or <size_t>got != n
            or lib.encrypt_final(self._sealer, <unsigned char*>to + n, &last) != 1
            or last != 0
            or lib.control(self._sealer, _GET_TAG, _TAG, <void*>(to + n)) != 1
        ):
            raise RuntimeError("OpenSSL does not encrypt")
        return 0

    cdef bint open(self, int code, const char* record, size_t n, char* to) except? False:
        """Whether one of the keys decrypts a record; its payload, of ``n - 29`` bytes, goes to
        ``to``.
        """
        cdef list openers
        cdef Opener opener
        cdef Py_ssize_t i
        if n < _OVERHEAD or n > _MOST or (code != 1 and code != 2):
            return False
        if self._openers[code] is None:
            self._openers[code] = [Opener(code, key) for key in self._keys]
        openers = self._openers[code]
        for i in range(len(openers)):
            opener = openers[i]
            if opener.open(<const unsigned char*>record, n, <unsigned char*>to):
                if i:
                    openers.insert(0, openers.pop(i))
                return True
        return False

    def encrypt(self, int code, bytes nonce not None, bytes data not None):
        """Ciphertext and tag. Raises ``RuntimeError``."""
        if PyBytes_GET_SIZE(nonce) != _NONCE or (code != 1 and code != 2):
            raise ValueError("a nonce of 12 bytes, and the code of a cipher")
        cdef bytes made = PyBytes_FromStringAndSize(NULL, PyBytes_GET_SIZE(data) + _TAG)
        self.seal(
            code,
            PyBytes_AS_STRING(nonce),
            PyBytes_AS_STRING(data),
            <size_t>PyBytes_GET_SIZE(data),
            PyBytes_AS_STRING(made),
        )
        return made

    def decrypt(self, bytes record not None):
        """The payload of a record, ``None`` if no key decrypts it."""
        cdef size_t n = <size_t>PyBytes_GET_SIZE(record)
        cdef const char* p = PyBytes_AS_STRING(record)
        if n < _OVERHEAD:
            return None
        cdef bytes made = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>n - _OVERHEAD)
        return made if self.open(p[0], p, n, PyBytes_AS_STRING(made)) else None
