"""Our client against the recorded habits of the original server, 0.25.6 and 0.10.0: every session
turned round.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.client.fake import on_a_loop
from tests.client.replay_client import Turned
from tests.compat.players.recordings import DATA, read_lines

if TYPE_CHECKING:
    from pathlib import Path

#: What our client does not send and the recorded server took, by recording and id of the line.
MORE_STRICT = {"connect-basic": ["c4"]}  # a ping interval below 0

#: In these no client speaks.
SILENT = {"ft-two-actives.v0.25.6", "v0.10.0/ft-two-actives"}


def name_of(recording: Path) -> str:
    return recording.relative_to(DATA).as_posix().removesuffix(".jsonl.gz")


RECORDINGS = sorted(
    path
    for path in (*DATA.glob("*.jsonl.gz"), *(DATA / "v0.10.0").glob("*.jsonl.gz"))
    if name_of(path) not in SILENT
)


def test_both_releases_are_there() -> None:
    assert len(RECORDINGS) == 119


@pytest.mark.parametrize("recording", RECORDINGS, ids=name_of)
@on_a_loop
async def test_our_client_asks_as_recorded_and_understands_the_answers(recording: Path) -> None:
    turned = Turned(read_lines(recording))
    await turned.play()
    print(turned.compared, [line.shown() for line in turned.refused_here])
    assert turned.problems == []
    assert turned.compared
    scenario = name_of(recording).removeprefix("v0.10.0/").removesuffix(".v0.25.6")
    assert turned.accepted_there() == MORE_STRICT.get(scenario, [])
