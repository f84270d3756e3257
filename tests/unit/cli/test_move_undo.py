"""``ftstanctl channel move --undo``: which servers are asked, and in which order."""

from __future__ import annotations

import argparse
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ftstan.admin.protocol import Request, Verb
from ftstan.base.errors import RefusedError
from ftstan.cli import move


class Servers:
    """Servers with what each knows of one move; ``asked``: who was asked to take it back, and
    whether it was told that the source has.
    """

    def __init__(self, owner: str, **rows: dict[str, Any]) -> None:
        self._owner = owner
        self._rows = rows
        self.asked: list[tuple[str, bool]] = []

    def serving(self) -> list[Any]:
        return [SimpleNamespace(server=name, name=name) for name in self._rows]

    def rows(self, _request: Request, server: Any) -> list[dict[str, Any]]:
        row = self._rows[server.server]
        return [{"name": "orders", **row}] if row else []

    def one(self, request: Request) -> tuple[Any]:
        assert request.verb is Verb.CHANNEL
        if not self._owner:
            raise RefusedError("nobody serves it")
        return (SimpleNamespace(server=self._owner, name=self._owner),)

    def change(self, _arguments: argparse.Namespace, server: Any, request: Request) -> Any:
        if self._rows[server.server]["step"] == "gone":
            raise RefusedError("the channel has moved for good")
        self.asked.append((server.server, request.force))
        return SimpleNamespace(note="taken back")


def undo(servers: Servers) -> list[tuple[str, bool]]:
    words = argparse.Namespace(
        name="orders", output="json", to_dir="", to_admin_key="", status=False, undo=True
    )
    move.run(words, cast("Any", servers))
    return servers.asked


def row(step: str, transfer: str) -> dict[str, Any]:
    return {"step": step, "transfer": transfer}


@pytest.fixture(autouse=True)
def _names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(move, "server_name", lambda server: server.name)


def test_the_source_is_asked_first_and_the_target_is_told() -> None:
    servers = Servers("a", a=row("offered", "1"), b=row("ready", "1"))
    assert undo(servers) == [("a", False), ("b", True)]


def test_an_earlier_move_of_the_channel_is_not_in_the_way() -> None:
    servers = Servers("b", a=row("gone", "1"), b=row("offered", "2"), c=row("copying", "2"))
    assert undo(servers) == [("b", False), ("c", True)]


def test_a_channel_that_has_gone_does_not_come_back() -> None:
    for target in (row("ready", "1"), row("taken", "1")):
        servers = Servers("", a=row("gone", "1"), b=target)
        with pytest.raises(RefusedError, match="for good"):
            undo(servers)
        assert servers.asked == []


def test_the_rest_of_a_command_that_was_killed_between_the_two_servers_is_done() -> None:
    servers = Servers("a", a={}, b=row("ready", "1"))
    assert undo(servers) == [("b", True)]


def test_a_target_whose_source_says_nothing_is_not_told_that_it_was_taken_back() -> None:
    assert undo(Servers("", b=row("ready", "1"))) == [("b", False)]
    assert undo(Servers("b", a={}, b=row("ready", "1"))) == [("b", False)]
