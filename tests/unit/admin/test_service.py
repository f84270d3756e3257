"""A member answers everybody, and lets only operators with the key change something."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest

from ftstan.admin.keys import Keys
from ftstan.admin.protocol import Answer, EpochEntry, Request, Verb, decode_answer
from ftstan.admin.service import AdminService
from ftstan.admin.signing import Recipient, plain, seal
from ftstan.base.clock import ManualClock
from ftstan.base.errors import RefusedError, StoreError
from tests.uncoded import uncoded
from tests.unit.admin.test_protocol import ENTRY, STATUS

if TYPE_CHECKING:
    from ftstan.base.states import NodeStatus

KEY = bytes(32)
OTHER_KEY = bytes(range(32))
ME = Recipient("c", "S1")


@dataclass
class FakeMember:
    """A member that notes what it is asked. ``refuses``: its answer to every change."""

    key: bytes | None = KEY
    old: bytes | None = None
    old_until_ns: int = 0
    done: list[str] = field(default_factory=list)
    reads: int = 0
    refuses: Exception | None = None
    unreadable: bool = False

    async def status(self) -> NodeStatus:
        return STATUS

    async def history(self, count: int) -> tuple[EpochEntry, ...]:
        self.done.append(f"history {count}")
        return (ENTRY,)

    async def switchover(self, to: str) -> None:
        self._do(f"switchover {to}")

    async def plan_switchover(self, to: str, at_ns: int) -> None:
        self._do(f"plan {to} {at_ns}")

    async def pause(self, by: str) -> None:
        self._do(f"pause {by}".rstrip())

    async def resume(self) -> None:
        self._do("resume")

    async def set_mixed(self, *, on: bool) -> None:
        self._do(f"mixed {on}")

    async def administer(self, request: Request) -> Answer:
        self._do(f"{request.verb} {request.name}")
        return Answer(
            ok=True,
            note="well done",
            rows=({"name": request.name},) if not request.verb.changes else (),
        )

    async def read_keys(self) -> Keys:
        self.reads += 1
        await asyncio.sleep(0)
        if self.unreadable:
            raise StoreError("storage has not answered for 2s", hint="check the storage")
        return Keys(self.key, self.old, self.old_until_ns)

    def _do(self, what: str) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.done.append(what)


class Office:
    """A service, its member, and an operator with a key."""

    def __init__(self, member: FakeMember | None = None) -> None:
        self.member = member or FakeMember()
        self.clock = ManualClock(1_700_000_000_000_000_000)
        self.service = AdminService(self.member, ME, self.clock)
        self._nonce = 0

    def seal(self, request: Request, key: bytes = KEY) -> bytes:
        self._nonce += 1
        nonce = self._nonce.to_bytes(16, "big")
        return seal(request, ME, key=key, now_ns=self.clock.wall_ns(), nonce=nonce)

    def send(self, payload: bytes) -> Answer:
        return decode_answer(asyncio.run(self.service.answer(payload)))

    def ask(self, request: Request, key: bytes = KEY) -> Answer:
        return self.send(self.seal(request, key))


def warnings(capfd: pytest.CaptureFixture[str]) -> list[str]:
    return [line for line in uncoded(capfd.readouterr().err).splitlines() if "[WRN]" in line]


def test_a_change_of_what_is_served_is_a_line_in_the_log_whatever_comes_of_it(
    capfd: pytest.CaptureFixture[str],
) -> None:
    office = Office()
    request = Request(Verb.DELETE, name="a\nb", force=True, by="me@here (uid 7)")
    assert office.ask(request).note == "well done"
    office.member.refuses = RefusedError("not now")
    assert not office.ask(request).ok
    office.member.refuses = StoreError("no storage")
    assert not office.ask(request).ok
    office.member.refuses = None
    assert office.ask(Request(Verb.CHANNEL, name="a")).rows == ({"name": "a"},)
    lines = [
        line.partition("audit: ")[2]
        for line in uncoded(capfd.readouterr().err).splitlines()
        if "audit: " in line
    ]
    asked = 'me@here (uid 7) asked for: channel-delete "a\\nb" with its subscriptions: '
    assert lines == [asked + "well done", asked + "refused: not now", asked + "failed: no storage"]


@pytest.mark.parametrize("verb", [verb for verb in Verb if verb.changes and verb.administers])
def test_what_changes_what_is_served_takes_the_key(verb: Verb) -> None:
    office = Office()
    assert not office.send(plain(Request(verb, name="a"))).ok
    assert not office.ask(Request(verb, name="a"), OTHER_KEY).ok
    assert office.member.done == []
    assert office.ask(Request(verb, name="a")).ok


def test_anybody_may_ask_for_status_and_history() -> None:
    office = Office()
    assert decode_answer(asyncio.run(office.service.who())).status == STATUS
    assert office.send(plain(Request(Verb.STATUS))).status == STATUS
    assert office.send(plain(Request(Verb.HISTORY, count=3))).history == (ENTRY,)
    assert office.member.done == ["history 3"]
    assert office.member.reads == 0


@pytest.mark.parametrize(
    ("request_", "done"),
    [
        (Request(Verb.SWITCHOVER, to="S2"), "switchover S2"),
        (Request(Verb.PAUSE), "pause me@here"),
        (Request(Verb.PLAN, to="S2", at_ns=7), "plan S2 7"),
        (Request(Verb.RESUME), "resume"),
        (Request(Verb.MIXED, on=True), "mixed True"),
        (Request(Verb.MIXED), "mixed False"),
    ],
)
def test_who_has_the_key_is_obeyed(
    request_: Request, done: str, capfd: pytest.CaptureFixture[str]
) -> None:
    office = Office()
    answer = office.ask(replace(request_, by="me@here"))
    assert answer == Answer(ok=True, status=STATUS)
    assert office.member.done == [done]
    assert f"ft: asked by me@here for: {request_.verb}" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("payload", "error"),
    [
        (plain(Request(Verb.PAUSE)), "is not sealed with the group's key"),
        (
            seal(
                Request(Verb.PAUSE),
                ME,
                key=OTHER_KEY,
                now_ns=1_700_000_000_000_000_000,
                nonce=bytes(16),
            ),
            "not sealed",
        ),
        (seal(Request(Verb.PAUSE), ME, key=KEY, now_ns=1, nonce=bytes(16)), "has expired"),
        (b"rubbish", "is a JSON object"),
        (
            plain(Request(Verb.STATUS)).replace(b'"name":""', rb'"name":"\ud800"'),
            "is a JSON object",
        ),
    ],
)
def test_everybody_else_is_refused_told_why_and_logged(
    payload: bytes, error: str, capfd: pytest.CaptureFixture[str]
) -> None:
    office = Office()
    answer = office.send(payload)
    assert not answer.ok
    assert error in answer.error
    assert answer.hint
    assert office.member.done == []
    (line,) = warnings(capfd)
    assert "ft: a control request was refused" in line
    assert KEY.hex() not in line


def test_a_request_that_was_overheard_is_refused_when_it_comes_again() -> None:
    office = Office()
    message = office.seal(Request(Verb.PAUSE))
    assert office.send(message).ok
    again = office.send(message)
    assert (again.ok, again.error) == (False, "the request was sent before")
    assert office.member.done == ["pause"]


def test_a_flood_of_refused_requests_is_a_few_lines_and_two_reads_of_the_key_a_second(
    capfd: pytest.CaptureFixture[str],
) -> None:
    office = Office()
    for _ in range(500):
        assert not office.ask(Request(Verb.PAUSE), OTHER_KEY).ok
        office.clock.advance(0.01)
    assert 1 < office.member.reads <= 12
    assert len(warnings(capfd)) <= 4


def test_a_key_that_was_replaced_opens_nothing_any_more() -> None:
    office = Office()
    assert office.ask(Request(Verb.PAUSE)).ok
    office.member.key = OTHER_KEY
    office.clock.advance(1)
    assert not office.ask(Request(Verb.PAUSE), KEY).ok
    assert office.ask(Request(Verb.RESUME), OTHER_KEY).ok
    office.member.key = None
    office.clock.advance(1)
    assert "there is no admin.key" in office.ask(Request(Verb.PAUSE), OTHER_KEY).error
    assert office.member.done == ["pause", "resume"]


def test_the_former_key_counts_until_its_time_and_nothing_unsealed_in_between() -> None:
    office = Office()
    assert office.ask(Request(Verb.PAUSE)).ok
    office.member.key = OTHER_KEY
    office.member.old = KEY
    office.member.old_until_ns = office.clock.wall_ns() + 5_000_000_000
    # At once, although the former key was read within the second.
    assert office.ask(Request(Verb.RESUME), OTHER_KEY).ok
    assert office.ask(Request(Verb.PAUSE), KEY).ok
    for key in (bytes([9] * 32), bytes(range(1, 33))):
        assert not office.ask(Request(Verb.PAUSE), key).ok
    assert not office.send(plain(Request(Verb.PAUSE))).ok
    office.clock.advance(4.9)
    assert office.ask(Request(Verb.PAUSE), KEY).ok
    office.clock.advance(0.1)
    assert not office.ask(Request(Verb.PAUSE), KEY).ok
    assert office.ask(Request(Verb.PAUSE), OTHER_KEY).ok


def test_who_asks_for_what_is_not_there_is_no_warning(capfd: pytest.CaptureFixture[str]) -> None:
    office = Office()
    office.member.refuses = RefusedError('there is no channel "ordres"')
    answer = office.send(plain(Request(Verb.CHANNEL, name="ordres")))
    assert (answer.ok, answer.error) == (False, 'there is no channel "ordres"')
    assert warnings(capfd) == []
    # What nobody may do is one, as before.
    assert not office.send(plain(Request(Verb.PAUSE))).ok
    assert len(warnings(capfd)) == 1


def test_a_request_that_comes_while_the_key_is_read_waits_for_it() -> None:
    office = Office()

    async def both() -> list[bytes]:
        requests = [office.seal(Request(Verb.PAUSE)), office.seal(Request(Verb.RESUME))]
        return await asyncio.gather(*(office.service.answer(request) for request in requests))

    assert [decode_answer(answer).ok for answer in asyncio.run(both())] == [True, True]
    assert office.member.reads == 1


def test_a_member_without_a_key_says_so() -> None:
    assert "there is no admin.key" in Office(FakeMember(key=None)).ask(Request(Verb.PAUSE)).error


def test_storage_that_does_not_answer_is_an_answer(capfd: pytest.CaptureFixture[str]) -> None:
    office = Office(FakeMember(unreadable=True))
    answer = office.ask(Request(Verb.PAUSE))
    assert office.ask(Request(Verb.PAUSE)) == answer
    assert office.member.reads == 1
    assert (answer.ok, answer.error, answer.hint) == (
        False,
        "storage has not answered for 2s",
        "check the storage",
    )
    assert "a control request failed: storage has not answered" in capfd.readouterr().err


def test_what_the_member_will_not_do_is_told_with_its_reason() -> None:
    office = Office(
        FakeMember(refuses=RefusedError("this server is active", hint="switch over first"))
    )
    answer = office.ask(Request(Verb.PAUSE))
    assert (answer.ok, answer.error, answer.hint) == (
        False,
        "this server is active",
        "switch over first",
    )
