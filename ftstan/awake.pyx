"""A processor that stays awake for clients that wait for each answer.

A client that publishes one message at a time lets every process on the road fall asleep several times a message: the
server waits for its socket, then for its disk. A processor with nothing to run is halted, and waking it costs tens of
microseconds in a virtual machine, after which everything is slow once more, because its caches are cold. So while
little batches come soon after what was answered, a thread of this module keeps the processor of the data plane busy
with nothing. It has the scheduling policy for idle work (``SCHED_IDLE``), so whoever else has something to do there
runs at once, and it goes to sleep by itself when no batch comes. ``docs/performance.md`` has what it is worth.
"""

import os
import threading

from libc.stdint cimport int64_t
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec

cdef extern from *:
    """
    #include <errno.h>
    #include <sched.h>
    #include <semaphore.h>
    #include <sys/socket.h>

    #define get(p) __atomic_load_n((p), __ATOMIC_ACQUIRE)
    #define set(p, v) __atomic_store_n((p), (v), __ATOMIC_RELEASE)
    #define exchange(p, v) __atomic_exchange_n((p), (v), __ATOMIC_ACQ_REL)

    static int be_idle(void)
    {
        struct sched_param none = {0};
        return sched_setscheduler(0, SCHED_IDLE, &none);
    }

    static int move_to(int cpu)
    {
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        return sched_setaffinity(0, sizeof one, &one);
    }

    /* The processor on which the kernel took what came last on a socket; over loopback, that of who sent it. */
    static int comes_from(int fd)
    {
        int cpu = -1;
        socklen_t size = sizeof cpu;
        return getsockopt(fd, SOL_SOCKET, SO_INCOMING_CPU, &cpu, &size) == 0 ? cpu : -1;
    }

    static void sleep_on(sem_t *s)
    {
        while (sem_wait(s) != 0 && errno == EINTR) {
        }
    }

    static void pause_a_little(void)
    {
        for (int i = 0; i < 64; i++) {
    #if defined(__x86_64__)
            __builtin_ia32_pause();
    #elif defined(__aarch64__)
            __asm__ volatile("yield");
    #endif
        }
    }
    """
    ctypedef struct sem_t:
        pass
    int sem_init(sem_t* s, int shared, unsigned int value) nogil
    int sem_post(sem_t* s) nogil
    int sem_destroy(sem_t* s) nogil
    int sched_getcpu() nogil
    int64_t get(int64_t* p) nogil
    void set(int64_t* p, int64_t v) nogil
    int64_t exchange(int64_t* p, int64_t v) nogil
    int be_idle() nogil
    int move_to(int cpu) nogil
    int comes_from(int fd) nogil
    void sleep_on(sem_t* s) nogil
    void pause_a_little() nogil


cdef enum:
    #: Bytes of a batch that is a message or a few: from clients that wait for an answer each.
    LITTLE = 2048
    #: Nanoseconds for which storage is waited for in this way: what takes longer is little slower for a wake.
    LONGEST = 2_000_000


cdef inline int64_t mono() noexcept nogil:
    cdef timespec t
    clock_gettime(CLOCK_MONOTONIC, &t)
    return t.tv_sec * 1_000_000_000 + t.tv_nsec


def has_quota(str root="/sys/fs/cgroup", str own="/proc/self/cgroup"):
    """Whether this process may use only so much processor time, as containers are limited: idling would use it up."""
    try:
        with open(own, encoding="utf-8") as file:
            found = [line[3:].strip() for line in file if line.startswith("0::")]
    except OSError:
        return False
    if not found:
        return False
    parts = [part for part in found[0].split("/") if part]
    for depth in range(len(parts), -1, -1):
        try:
            with open("/".join([root, *parts[:depth], "cpu.max"]), encoding="ascii") as file:
                if not file.read().startswith("max"):
                    return True
        except OSError:
            # The root of a whole system has none, and a container may not see what is above it.
            continue
    return False


cdef class Keeper:
    """A thread that keeps one processor awake. It is made when it is needed first."""

    cdef int64_t until
    cdef int64_t cpu
    cdef int64_t asleep
    cdef int64_t stopping
    cdef int64_t refused
    cdef sem_t wanted
    cdef object thread

    def __cinit__(self):
        self.until = self.cpu = self.asleep = self.stopping = self.refused = 0
        self.thread = None
        if sem_init(&self.wanted, 0, 0) != 0:
            raise OSError("no semaphore")

    def __dealloc__(self):
        # The thread holds a reference while it runs.
        sem_destroy(&self.wanted)

    cdef int want(self, int cpu, int64_t until) except -1:
        """Keep that processor awake until then (monotonic ns)."""
        set(&self.cpu, cpu)
        set(&self.until, until)
        if self.thread is None:
            self.thread = threading.Thread(target=self._run, name="awake", daemon=True)
            self.thread.start()
        elif exchange(&self.asleep, 0):
            sem_post(&self.wanted)
        return 0

    cdef bint is_awake(self):
        return self.thread is not None and not get(&self.asleep) and not get(&self.refused)

    cdef close(self):
        set(&self.stopping, 1)
        if self.thread is not None:
            sem_post(&self.wanted)
            self.thread.join()

    def _run(self):
        with nogil:
            self.keep()

    cdef void keep(self) noexcept nogil:
        cdef int64_t cpu
        cdef int64_t mine = -1
        if be_idle() != 0:
            # At an ordinary priority it would take time from those whom it is to help.
            set(&self.refused, 1)
            return
        while not get(&self.stopping):
            while mono() < get(&self.until) and not get(&self.stopping):
                cpu = get(&self.cpu)
                if cpu != mine:
                    if move_to(<int>cpu) != 0:
                        set(&self.refused, 1)
                        return
                    mine = cpu
                pause_a_little()
            set(&self.asleep, 1)
            sleep_on(&self.wanted)


cdef class Awake:
    """``seconds``: so long after an answer processors are kept awake, if the last batch came within this time, too.

    0: never. ``processors``: how many this process has, 0: as many as it may use. With a single one nobody's wake is
    spared, and whose time is limited (``has_quota``) has none for it. ``begin`` and ``end`` belong to one thread.
    """

    cdef int64_t window
    cdef int64_t answered
    cdef bint pays
    cdef Keeper ours
    cdef Keeper theirs

    def __cinit__(self, double seconds, int processors=0):
        self.window = 0
        if seconds > 0 and (processors or len(os.sched_getaffinity(0))) > 1 and not has_quota():
            self.window = <int64_t>(seconds * 1e9)
        self.answered = 0
        self.pays = False
        self.ours = Keeper()
        self.theirs = Keeper()

    def begin(self, Py_ssize_t size, int fd):
        """A batch of so many bytes has come through a socket, to the calling thread."""
        if self.window == 0:
            return
        cdef int64_t now = mono()
        cdef int here, there
        self.pays = size <= LITTLE and now - self.answered < self.window
        if not self.pays:
            return
        here = sched_getcpu()
        there = comes_from(fd)
        self.ours.want(here, now + LONGEST)
        if there >= 0 and there != here:
            self.theirs.want(there, now + LONGEST)

    def end(self):
        """The batch has been answered."""
        self.answered = mono()
        if self.pays:
            set(&self.ours.until, self.answered + self.window)
            set(&self.theirs.until, self.answered + self.window)

    @property
    def is_awake(self):
        """Whether a processor is kept awake now."""
        return self.ours.is_awake() or self.theirs.is_awake()

    def close(self):
        """End the threads; ``begin`` does nothing from now on."""
        self.window = 0
        self.ours.close()
        self.theirs.close()
