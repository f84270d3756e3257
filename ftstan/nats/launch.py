"""Starting one ``nats-server`` process, which never outlives this one.

Nothing here waits, and no event loop is needed: a server that starts does this before it loads the
rest of itself. ``embedded`` supervises what was started. It must run on a thread that lives as long
as the process (the kernel's parent-death signal follows the thread that forked), and it must never
use ``preexec_fn``.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from typing import TYPE_CHECKING

from ftstan.base.environment import without_secrets
from ftstan.base.errors import NatsError
from ftstan.nats.binary import binary_path
from ftstan.nats.generated import NatsServerOptions, cluster_name, extra_token, render
from ftstan.nats.heldoutput import HeldOutput
from ftstan.nats.memory import go_limit

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Where our own links connect for an address that stands for every interface.
_LOOPBACK = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1", "[::]": "::1"}  # noqa: S104  # compared, never bound

# setpriv asks the kernel to kill the child with us, but cannot know whether we died before it
# asked. The shell that it becomes can: from there on either its parent is still us, or the signal
# is armed.
_GUARD = '[ "$PPID" = "$1" ] || exit 70; shift; exec "$@"'


class Launched:
    """A process that was started, and the directory (mode 0700) in which it finds its configuration
    and leaves its ports.

    The directory goes as soon as the process is ready: nothing with a password in it stays behind
    if we are killed. ``remove_files`` does it.

    It opens no port before ``open_gate``: what it takes for its pid file is a FIFO, and it waits
    there until somebody reads. So whoever wants to be its first client can be there in time, and
    do something else while it loads.
    """

    def __init__(
        self, process: subprocess.Popen[bytes], name: str, place: str, output: HeldOutput
    ) -> None:
        self.process = process
        self.name = name
        self.directory = place
        self.output = output
        self._gate = -1

    def open_gate(self) -> int:
        """Let it open its ports, in a moment; returns a descriptor that becomes readable when it
        goes about that, -1 if there is none.
        """
        with contextlib.suppress(OSError):  # of a file system without FIFOs: it does not wait
            if self._gate < 0:
                self._gate = os.open(
                    _gate_path(self.directory), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
                )
        return self._gate

    def ports(self) -> dict[str, int]:
        """Ports by kind (``nats``, ``monitoring``, ``cluster``), empty until every listener is open
        and the child has written all of its file.
        """
        for name in os.listdir(self.directory):
            if name.endswith(".ports"):
                with open(os.path.join(self.directory, name), encoding="utf-8") as file:
                    try:
                        listed = json.load(file)
                    except ValueError:
                        return {}
                return {
                    kind: int(urls[0].rpartition(":")[2]) for kind, urls in listed.items() if urls
                }
        return {}

    def remove_files(self) -> None:
        """Remove the directory, if it is still there."""
        if self._gate >= 0:
            os.close(self._gate)
            self._gate = -1
        shutil.rmtree(self.directory, ignore_errors=True)


def launch(options: NatsServerOptions, *, port: int = 0, cluster_port: int = 0) -> Launched:
    """Start a process.

    ``port`` and ``cluster_port`` override those of ``options`` (0: as written). Raises
    ``ConfigError`` for options that contradict each other, and ``NatsError``; nothing is left
    behind then.
    """
    binary = "nats-server"
    try:
        # Looking for it needs a descriptor, too.
        binary = binary_path()
        output = HeldOutput()
        place = tempfile.mkdtemp(prefix="ftstan-nats-")
        try:
            # A new name for each life: other members refuse a route from a name that they still
            # believe connected.
            name = f"{cluster_name(options.cluster_id)}-{os.urandom(4).hex()}"
            if options.jetstream is not None:
                # JetStream's servers know each other by it, across restarts.
                name = options.jetstream.server_name
            with contextlib.suppress(OSError):
                os.mkfifo(_gate_path(place), 0o600)
            conf = write_configuration(place, options, name, port=port, cluster_port=cluster_port)
            process = subprocess.Popen(
                _command(binary, "-c", conf, *_token(options)),
                stdin=subprocess.DEVNULL,
                stdout=output.theirs,
                stderr=subprocess.STDOUT,
                env=child_environment(
                    os.environ,
                    # Those that this process may run on, which can be fewer than the machine has.
                    len(os.sched_getaffinity(0)),
                    gomaxprocs=options.gomaxprocs,
                    gogc=options.gogc,
                    memory=go_limit(),
                ),
                # Not in the terminal's group: Ctrl-C is for us, and we stop the child after our own
                # links are closed.
                process_group=0,
            )
        except BaseException:
            output.close()
            shutil.rmtree(place, ignore_errors=True)
            raise
    except OSError as error:
        raise NatsError(f"cannot start {binary}: {error}") from error
    return Launched(process, name, place, output)


def write_configuration(
    directory: str, options: NatsServerOptions, name: str, *, port: int, cluster_port: int
) -> str:
    """Write the child's file into ``directory``, where it also leaves its ports; returns the
    path.
    """
    text = render(
        options,
        server_name=name,
        ports_dir=directory,
        port=port,
        cluster_port=cluster_port,
        pid_file=_gate_path(directory),
    )
    conf = os.path.join(directory, "nats.conf")
    descriptor = os.open(conf, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    return conf


def _gate_path(directory: str) -> str:
    return os.path.join(directory, "gate")


def client_url(host: str, port: int) -> str:
    """Where our own links connect: loopback when the child listens on every interface.

    Without credentials.
    """
    host = _LOOPBACK.get(host, host)
    return f"nats://[{host}]:{port}" if ":" in host else f"nats://{host}:{port}"


def child_environment(
    environment: Mapping[str, str],
    cpus: int,
    *,
    gomaxprocs: int = 0,
    gogc: int = 0,
    memory: int = 0,
) -> dict[str, str]:
    """Environment of the child: on one or two processors its scheduler and collector step back for
    the data plane.

    ``memory``: bytes that it may plan with, 0 for any number; ``GOMEMLIMIT`` in ``environment``
    wins.

    ``gomaxprocs`` and ``gogc``: what the operator chose by option, 0 if nothing. Ours are taken
    only when neither is set, in this way or in ``environment``.
    """
    child = without_secrets(environment)
    if gomaxprocs:
        child["GOMAXPROCS"] = str(gomaxprocs)
    if gogc:
        child["GOGC"] = str(gogc)
    if memory:
        child.setdefault("GOMEMLIMIT", str(memory))
    if cpus <= 2 and "GOMAXPROCS" not in child and "GOGC" not in child:
        child |= {"GOMAXPROCS": "1", "GOGC": "400"}
    return child


def _token(options: NatsServerOptions) -> tuple[str, ...]:
    token = extra_token(options)
    if not token:
        return ()
    from ftstan.nats.tokens import hashed  # noqa: PLC0415  # late: few starts have one

    return ("--auth", hashed(token))


def _command(binary: str, *arguments: str) -> list[str]:
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        raise NatsError(
            "setpriv was not found in PATH: without it an embedded nats-server would outlive "
            "this process",
            hint="install the package util-linux, or use -ns with an external NATS server",
        )
    return [
        setpriv,
        "--pdeathsig",
        "KILL",
        "/bin/sh",
        "-c",
        _GUARD,
        "sh",
        str(os.getpid()),
        binary,
        *arguments,
    ]
