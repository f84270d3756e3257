"""A list of a server that does not end is given up: whoever may answer in its name can send one."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from ftstan.admin.protocol import Answer, Request, Verb
from ftstan.base.errors import RefusedError
from ftstan.cli import admin_servers
from ftstan.cli.admin_servers import Servers
from tests.unit.admin.test_protocol import STATUS

if TYPE_CHECKING:
    from collections.abc import Iterator


def rows_of(answers: Iterator[list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    def ask(*_: object) -> Answer:
        rows = next(answers, None)
        return Answer(ok=True, rows=tuple(rows or ()), more=rows is not None)

    monkeypatch.setattr(Servers, "ask", ask)
    servers = object.__new__(Servers)
    return servers.rows(Request(Verb.CHANNELS), STATUS)


def test_a_list_in_pieces_is_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = [[{"name": "a"}], [{"name": "b"}, {"name": "c"}]]
    assert [row["name"] for row in rows_of(iter(pieces), monkeypatch)] == ["a", "b", "c"]


def test_a_list_that_comes_to_the_same_place_again_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(RefusedError, match="a list that does not end"):
        rows_of(iter(lambda: [{"name": "a"}], None), monkeypatch)


def test_a_list_with_ever_new_names_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_servers, "_MOST_ROWS", 1000)
    with pytest.raises(RefusedError, match="a list that does not end"):
        rows_of(([{"name": f"n{n}"}] for n in count()), monkeypatch)
