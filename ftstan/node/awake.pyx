"""Processors that stay awake for clients that wait for each answer.

A client that publishes one message at a time lets every process on the road fall asleep several
times a message: the server waits for its socket, then for its disk. A processor with nothing to run
is halted, and waking it costs tens of microseconds in a virtual machine, after which everything is
slow once more, because its caches are cold. So while little batches of publishes come soon after
answers, two threads of this module keep two processors busy with nothing: that of the data plane,
and the one from which the NATS server sends (of a remote one: where the network card is served).
They have the scheduling policy for idle work (``SCHED_IDLE``) and rest when somebody else needs
their processor all the same: groups of processes share it by the weight of the group. They sleep
when no batch comes. ``docs/performance.md`` has what that is worth.
"""

import os

from libc.stdint cimport int64_t
from libc.string cimport memset
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec
from posix.unistd cimport getpid

cdef extern from *:
    """
    #include <errno.h>
    #include <pthread.h>
    #include <sched.h>
    #include <semaphore.h>
    #include <signal.h>
    #include <sys/socket.h>
    #include <time.h>

    #define awake_get(p) __atomic_load_n((p), __ATOMIC_SEQ_CST)
    #define awake_set(p, v) __atomic_store_n((p), (v), __ATOMIC_SEQ_CST)
    #define awake_exchange(p, v) __atomic_exchange_n((p), (v), __ATOMIC_SEQ_CST)

    static int awake_start(pthread_t *thread, void *(*run)(void *), void *what)
    {
        sigset_t all, before;
        int error;
        /* Signals are for the threads that were there before. */
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        error = pthread_create(thread, NULL, run, what);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        return error;
    }

    static int awake_be_idle(void)
    {
        struct sched_param none = {0};
        pthread_setname_np(pthread_self(), "awake");
        return sched_setscheduler(0, SCHED_IDLE, &none);
    }

    static int awake_move_to(int cpu)
    {
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        return sched_setaffinity(0, sizeof one, &one);
    }

    /* The processor on which the kernel took what came last on a socket; over loopback, that of who
     * sent it. */
    static int awake_comes_from(int fd)
    {
        int cpu = -1;
        socklen_t size = sizeof cpu;
        return getsockopt(fd, SOL_SOCKET, SO_INCOMING_CPU, &cpu, &size) == 0 ? cpu : -1;
    }

    static int awake_may_use(const cpu_set_t *set, int cpu)
    {
        return cpu >= 0 && cpu < CPU_SETSIZE && CPU_ISSET(cpu, set);
    }

    static void awake_sleep_on(sem_t *s)
    {
        while (sem_wait(s) != 0 && errno == EINTR) {
        }
    }

    static void awake_rest(long ns)
    {
        struct timespec t = {0, ns};
        nanosleep(&t, NULL);
    }

    static void awake_pause(void)
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
    ctypedef struct cpu_set_t:
        pass
    ctypedef unsigned long pthread_t
    int sem_init(sem_t* s, int shared, unsigned int value) nogil
    int sem_post(sem_t* s) nogil
    int sem_destroy(sem_t* s) nogil
    int pthread_join(pthread_t thread, void** result) nogil
    int sched_getcpu() nogil
    int sched_getaffinity(int pid, size_t size, cpu_set_t* set) nogil
    int64_t awake_get(int64_t* p) nogil
    void awake_set(int64_t* p, int64_t v) nogil
    int64_t awake_exchange(int64_t* p, int64_t v) nogil
    int awake_start(pthread_t* thread, void* (*run)(void*) noexcept nogil, void* what) nogil
    int awake_be_idle() nogil
    int awake_move_to(int cpu) nogil
    int awake_comes_from(int fd) nogil
    bint awake_may_use(const cpu_set_t* set, int cpu) nogil
    void awake_sleep_on(sem_t* s) nogil
    void awake_rest(long ns) nogil
    void awake_pause() nogil


cdef enum:
    #: Bytes of a batch that is a message or a few: from clients that wait for an answer each.
    LITTLE = 2048
    #: Nanoseconds for which storage is waited for in this way. What takes longer is little slower
    #: for a wake.
    LONGEST = 2_000_000
    #: Between two looks at the clock: more than a turn of the data plane, so others need this
    #: processor.
    CROWDED = 1_000_000
    #: How long it is left to them then.
    REST = 20_000_000


cdef inline int64_t mono() noexcept nogil:
    cdef timespec t
    clock_gettime(CLOCK_MONOTONIC, &t)
    return t.tv_sec * 1_000_000_000 + t.tv_nsec


def has_quota(str root="/sys/fs/cgroup", str own="/proc/self/cgroup"):
    """Whether this process may use only so much processor time, as containers are limited: idling
    would use it up.
    """
    try:
        with open(own, encoding="utf-8", errors="surrogateescape") as file:
            rows = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:
        return False
    for row in rows:
        # Version 2 has one hierarchy without a name; version 1 one for the processors.
        if len(row) != 3 or (row[1] and "cpu" not in row[1].split(",")):
            continue
        top = f"{root}/{row[1]}" if row[1] else root
        name = "cpu.cfs_quota_us" if row[1] else "cpu.max"
        parts = [part for part in row[2].split("/") if part]
        for depth in range(len(parts), -1, -1):
            try:
                with open(
                    "/".join([top, *parts[:depth], name]), encoding="ascii", errors="replace"
                ) as file:
                    first = file.read().split()[:1]
            except OSError:
                # The root of a whole system has none, and a container does not see what is above
                # it.
                continue
            if first not in ([], ["max"], ["-1"]):
                return True
    return False


cdef struct Kept:
    #: Monotonic nanoseconds until which the processor is kept awake.
    int64_t until
    int64_t cpu
    int64_t asleep
    int64_t stopping
    #: The kernel gives no thread, or none without priority, which would take time from those whom
    #: it is to help.
    int64_t refused
    sem_t wanted


cdef void* keep(void* what) noexcept nogil:
    """The thread of a keeper. No Python runs here: it would hold the interpreter while it waits for
    its processor.
    """
    cdef Kept* kept = <Kept*>what
    cdef int64_t mine = -1
    cdef int64_t cpu, now, before
    if awake_be_idle() != 0:
        awake_set(&kept.refused, 1)
        return NULL
    while not awake_get(&kept.stopping):
        before = now = mono()
        while (
            now < awake_get(&kept.until)
            and now - before < CROWDED
            and not awake_get(&kept.stopping)
        ):
            cpu = awake_get(&kept.cpu)
            if cpu != mine:
                if awake_move_to(<int>cpu) != 0:
                    break
                mine = cpu
            awake_pause()
            before = now
            now = mono()
        if now - before >= CROWDED:
            awake_rest(REST)
        awake_set(&kept.asleep, 1)
        if (
            mono() < awake_get(&kept.until)
            and mine == awake_get(&kept.cpu)
            and awake_exchange(&kept.asleep, 0)
        ):
            # It was wanted in between.
            continue
        awake_sleep_on(&kept.wanted)
    return NULL


cdef class Keeper:
    """One processor, and the thread that keeps it awake, made when it is needed first."""

    cdef Kept kept
    cdef pthread_t thread
    #: The process that made the thread: another one, after a fork, has none. 0: there is no thread.
    cdef int started

    def __cinit__(self):
        memset(&self.kept, 0, sizeof(self.kept))
        self.started = 0
        if sem_init(&self.kept.wanted, 0, 0) != 0:
            raise OSError("no semaphore")

    def __dealloc__(self):
        self.close()
        sem_destroy(&self.kept.wanted)

    cdef void want(self, int cpu, int64_t until) noexcept:
        """Keep that processor awake until then (monotonic ns)."""
        if awake_get(&self.kept.refused):
            return
        awake_set(&self.kept.cpu, cpu)
        awake_set(&self.kept.until, until)
        if not self.started:
            if awake_start(&self.thread, keep, &self.kept) == 0:
                self.started = getpid()
            else:
                awake_set(&self.kept.refused, 1)
        elif awake_exchange(&self.kept.asleep, 0):
            sem_post(&self.kept.wanted)

    cdef bint is_awake(self) noexcept:
        return (
            self.started != 0
            and not awake_get(&self.kept.asleep)
            and not awake_get(&self.kept.refused)
        )

    cdef void close(self) noexcept:
        awake_set(&self.kept.stopping, 1)
        if self.started and self.started == getpid():
            sem_post(&self.kept.wanted)
            with nogil:
                pthread_join(self.thread, NULL)
        self.started = 0
        awake_set(&self.kept.refused, 1)


cdef class Awake:
    """``seconds``: so long after an answer processors are kept awake, if the last batch came within
    this time, too.

    0: never. ``processors``: how many this process has, 0: as many as it may use, and none for this
    if its time is limited (``has_quota``). With a single one nobody's wake is spared. ``begin`` and
    ``end`` belong to one thread.
    """

    cdef int64_t window
    cdef int64_t began
    cdef int64_t answered
    cdef bint pays
    cdef bint both
    cdef cpu_set_t allowed
    cdef Keeper ours
    cdef Keeper theirs

    def __cinit__(self, double seconds, int processors=0):
        self.window = self.began = self.answered = 0
        self.pays = self.both = False
        self.ours = Keeper()
        self.theirs = Keeper()
        memset(&self.allowed, 0, sizeof(self.allowed))
        # With more processors than the set has room for it is refused, and nothing is allowed.
        if sched_getaffinity(0, sizeof(self.allowed), &self.allowed) != 0:
            return
        if seconds <= 0:
            return
        if processors == 0 and not has_quota():
            processors = len(os.sched_getaffinity(0))
        if processors > 1:
            self.window = <int64_t>(seconds * 1e9)

    def begin(self, Py_ssize_t size, int fd):
        """Publishes have come to the calling thread, so many bytes, through a socket."""
        if self.window == 0:
            return
        cdef int here, there
        self.began = mono()
        self.pays = size <= LITTLE and self.began - self.answered < self.window
        if not self.pays:
            return
        here = sched_getcpu()
        there = awake_comes_from(fd)
        if awake_may_use(&self.allowed, here):
            self.ours.want(here, self.began + LONGEST)
        # What an operator has taken from this process is not kept awake either.
        self.both = there != here and awake_may_use(&self.allowed, there)
        if self.both:
            self.theirs.want(there, self.began + LONGEST)

    def end(self):
        """They have been answered."""
        cdef int64_t now = mono()
        if now - self.began > LONGEST:
            # Storage takes so long that a wake more or less is nothing.
            self.answered = 0
            return
        self.answered = now
        if self.pays:
            awake_set(&self.ours.kept.until, now + self.window)
            if self.both:
                awake_set(&self.theirs.kept.until, now + self.window)

    @property
    def is_awake(self):
        """Whether a processor is kept awake now."""
        return self.ours.is_awake() or self.theirs.is_awake()

    def close(self):
        """End the threads; ``begin`` does nothing from now on."""
        self.window = 0
        self.ours.close()
        self.theirs.close()
