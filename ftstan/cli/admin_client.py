"""How commands of ``ftstanctl`` ask servers over NATS, and seal what changes something with the
servers' key.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ftstan.admin.keys import KEY_NAME, read_key_at
from ftstan.admin.protocol import Answer, Request, decode_answer, encode_who
from ftstan.admin.signing import NONCE_SIZE, Recipient, seal
from ftstan.base.clock import SystemClock
from ftstan.base.errors import (
    ConfigError,
    FtstanError,
    NatsError,
    RefusedError,
    StoreError,
    WireError,
)
from ftstan.ft.health import name
from ftstan.ft.subjects import control_subject

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from ftstan.base.states import NodeStatus
    from ftstan.nats.request import Asker


BUSY_S = 3.0
"""For a second question, when nobody answered the first in time: hosts may be busy."""

_QUIET_S = 0.1
"""How long nobody may have answered, where those who did could be all."""

_ANSWER_S = 15.0
"""A member bounds what it waits for itself; this is for one that is gone."""


class UnservedError(FtstanError):
    """Nobody serves, so that nobody can be asked."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Servers of one cluster that are asked, through ``asker``.

    ``timeout`` in seconds for who they are.
    """

    asker: Asker
    cluster: str
    timeout: float

    def who(
        self,
        subject: str,
        seconds: float | None = None,
        enough: Callable[[list[NodeStatus]], bool] = lambda _: False,
        complete: Callable[[list[NodeStatus]], bool] = lambda _: False,
    ) -> list[NodeStatus]:
        """Everybody who answers there, by name.

        Sooner if ``enough``, or if they could be all and nobody else has said anything for a while:
        ``complete``.
        """
        answers = self.asker.ask_all(
            subject,
            encode_who(),
            self.timeout if seconds is None else seconds,
            enough=lambda payloads: enough(_servers(payloads)),
            quiet=lambda payloads: complete(_servers(payloads)),
            quiet_s=_QUIET_S,
        )
        return _servers(answers)

    def ask(self, server: NodeStatus, payload: bytes) -> Answer:
        """One server's answer.

        Raises ``RefusedError`` if it says no, ``NatsError`` if it says nothing.
        """
        answer = self.hear(server, payload)
        if not answer.ok:
            raise RefusedError(f"{name(server)}: {answer.error}", hint=answer.hint)
        return answer

    def hear(self, server: NodeStatus, payload: bytes) -> Answer:
        """The same, whatever it says."""
        data = self.asker.ask(control_subject(self.cluster, server.server), payload, _ANSWER_S)
        if data is None:
            raise NatsError(
                f"{name(server)} did not answer",
                hint="it may have stopped, or it may still do what was asked: look again, and "
                "see its log",
            )
        return decode_answer(data)

    def sealed(self, arguments: argparse.Namespace, server: NodeStatus, request: Request) -> bytes:
        """A request that changes something.

        Raises ``ConfigError`` and ``StoreError`` about the key.
        """
        return seal(
            request,
            Recipient(self.cluster, server.server),
            key=read_admin_key(arguments),
            now_ns=SystemClock().wall_ns(),
            nonce=os.urandom(NONCE_SIZE),
        )

    def change(self, arguments: argparse.Namespace, server: NodeStatus, request: Request) -> Answer:
        """Ask for what changes something."""
        return self.ask(server, self.sealed(arguments, server, request))


def _servers(payloads: Sequence[bytes]) -> list[NodeStatus]:
    found: dict[str, NodeStatus] = {}
    for payload in payloads:
        try:
            answer = decode_answer(payload)
        except WireError:
            # Anybody can send to an inbox: what is no status is nobody's.
            continue
        if answer.status is not None:
            found[answer.status.server] = answer.status
    return sorted(found.values(), key=lambda node: (node.called, node.host, node.server))


def read_admin_key(arguments: argparse.Namespace) -> bytes:
    """The servers' key from where the operator says that it is.

    Raises ``ConfigError`` and ``StoreError``.
    """
    path = arguments.admin_key
    if not path and arguments.dir:
        path = os.path.join(arguments.dir, KEY_NAME)
    if not path:
        raise ConfigError(
            f"changing something takes the servers' {KEY_NAME}",
            hint=f"give --dir the datastore, or --admin-key a copy of its {KEY_NAME}",
        )
    key = read_key_at(path)
    if key is None:
        raise StoreError(
            f"{path} does not exist",
            hint="a datastore's first active, or leader, makes it; check --dir, --admin-key",
        )
    return key


def claimed() -> str:
    """Who asks, for the servers' logs; nobody checks it."""
    import getpass  # noqa: PLC0415  # late: for what changes something
    import socket  # noqa: PLC0415

    return f"{getpass.getuser()}@{socket.gethostname()} (uid {os.getuid()})"
