"""Commands ask again where nobody serves yet: a server that has just started does in a moment."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest

from ftstan.admin.protocol import Answer, encode_answer
from ftstan.cli.admin_client import UnservedError
from ftstan.cli.admin_servers import Servers
from tests.unit.admin.test_protocol import STATUS

if TYPE_CHECKING:
    from ftstan.base.states import NodeStatus


@dataclass
class Asked:
    """What each question is answered with, the last one again and again."""

    answers: list[list[NodeStatus]]
    count: int = field(default=0)

    def ask_all(self, *_: object, **__: object) -> list[bytes]:
        found = self.answers[min(self.count, len(self.answers) - 1)]
        self.count += 1
        return [encode_answer(Answer(True, status=status)) for status in found]


def servers(asked: Asked) -> Servers:
    asker: Any = asked
    return Servers(asker, "test-cluster", 0.1)


def test_a_server_that_listens_or_serves_a_moment_later_is_found() -> None:
    serving = replace(STATUS, serving=True)
    waiting = replace(STATUS, serving=False)
    for first in ([], [waiting]):
        asked = Asked([first, first, [serving]])
        assert [node.server for node in servers(asked).serving()] == [STATUS.server]
        assert asked.count == 3


def test_where_nobody_serves_there_is_an_end() -> None:
    for found in ([], [replace(STATUS, serving=False)]):
        asked = Asked([found])
        with pytest.raises(UnservedError, match="no server of cluster test-cluster serves"):
            servers(asked).serving()
        assert asked.count == 4
