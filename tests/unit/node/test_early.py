"""What is done before most of a server is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ftstan.config.options import NatsOptions, ServerOptions
from ftstan.node import early
from ftstan.node.early import Early

if TYPE_CHECKING:
    from ftstan.nats.launch import Launched


class MetError(Exception):
    """A connection was about to be made."""


@pytest.mark.parametrize(
    ("nats", "connects"),
    [
        (NatsOptions(port=4222), True),
        (NatsOptions(port=4222, user="me", password="secret"), False),
        (NatsOptions(port=4222, token="secret"), False),
    ],
)
def test_a_login_is_shown_to_nobody_before_the_nats_server_has_named_its_ports(
    monkeypatch: pytest.MonkeyPatch, nats: NatsOptions, *, connects: bool
) -> None:
    def meet(*_: object, **__: object) -> None:
        raise MetError

    monkeypatch.setattr(early, "Link", meet)
    monkeypatch.setattr(early, "_Gate", lambda *_: Open())
    begun = Early(ServerOptions(nats=nats))
    launched: Launched = Child()  # type: ignore[assignment]
    if connects:
        with pytest.raises(MetError):
            begun._listen(begun._options, launched)
    else:
        begun._listen(begun._options, launched)
    assert begun.take_link() is None


class Open:
    """A port that may be tried."""

    def open(self) -> None:
        """Nobody waits for it."""

    def goes_on(self) -> bool:
        return True

    def port(self, wanted: int) -> int:
        return wanted

    def wait(self) -> bool:
        return True


class Child:
    """A NATS server that prints nothing."""

    def __init__(self) -> None:
        self.output = self

    def hold(self, _: object) -> None:
        """Nothing to hold."""
