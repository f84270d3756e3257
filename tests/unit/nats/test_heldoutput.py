"""A NATS server that is held at its port: who connects is in the queue, and nobody is served before
it is let go.
"""

from __future__ import annotations

import os
import resource
import socket
import threading

import pytest

from ftstan.nats.generated import NatsServerOptions
from ftstan.nats.heldoutput import HeldOutput
from ftstan.nats.launch import launch
from tests.processes import HOST, free_ports, until

_PATIENCE_S = 30.0


@pytest.mark.processes
def test_a_client_that_finds_the_port_is_not_greeted_before_the_server_is_let_go() -> None:
    port = free_ports(1)[0]
    launched = launch(NatsServerOptions(cluster_id="c", host=HOST, port=port))
    clients: list[socket.socket] = []

    def connects() -> bool:
        try:
            clients.append(socket.create_connection((HOST, port), _PATIENCE_S))
        except ConnectionRefusedError:
            return False
        return True

    try:
        launched.output.hold(lambda: True)
        assert b"Using configuration file" in launched.output.read
        assert not connects()
        launched.open_gate()
        until(connects, "a port")
        (client,) = clients
        assert launched.output.is_full
        client.settimeout(0.5)
        with pytest.raises(TimeoutError):
            client.recv(1)
        launched.output.release()
        client.settimeout(_PATIENCE_S)
        assert client.recv(5) == b"INFO "
        with launched.output.take() as rest:
            assert b"Listening for client connections" in rest.read(65536) + rest.read(65536)
    finally:
        launched.output.close()
        launched.process.kill()
        launched.process.wait()
        launched.remove_files()
        for client in clients:
            client.close()


def test_what_was_held_is_lines_again_when_it_is_let_go() -> None:
    output = HeldOutput()
    os.write(output.theirs, b"Using configuration file: x\n")
    output.hold(lambda: True)
    assert not output.is_full
    theirs = os.dup(output.theirs)

    def print_all() -> None:
        for line in (b"first\n", b"second\n", b"third\n"):
            os.write(theirs, line)
        os.close(theirs)

    printer = threading.Thread(target=print_all)
    printer.start()
    until(lambda: output.is_full, "a line that waits")
    assert output.read == b"Using configuration file: x\n"
    output.release()
    assert not output.is_full
    with output.take() as rest:
        assert rest.readall() == b"first\nsecond\nthird\n"  # type: ignore[attr-defined]
    printer.join()


def test_a_server_that_says_something_else_is_not_held() -> None:
    output = HeldOutput()
    os.write(output.theirs, b"something else\n")
    output.hold(lambda: False)
    output.release()
    with output.take() as rest:
        assert output.read == b"something else\n"
        assert rest.read(1) == b""


def test_a_process_with_thousands_of_open_files_is_served_as_well() -> None:
    usual, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    others = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        output = HeldOutput()
        assert output.ours > 1024
        os.write(output.theirs, b"Using configuration file: x\n")
        output.hold(lambda: True)
        before = output.is_full
        os.write(output.theirs, b"the one line that has room\n")
        assert (before, output.is_full) == (False, True)
        output.close()
    finally:
        for other in others:
            os.close(other)
        resource.setrlimit(resource.RLIMIT_NOFILE, (usual, most))
