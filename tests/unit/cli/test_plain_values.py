"""What people read holds no value as Python or JavaScript writes it: no None, True, False or nan,
whatever is missing.
"""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from demo.report import switch_line, table
from ftstan.admin.keys import KEY_NAME
from ftstan.admin.protocol import decode_answer
from ftstan.base.errors import WireError
from ftstan.base.states import NodeStatus
from ftstan.cli import drill as drill_command
from ftstan.cli.admin import _told, _told_apart
from ftstan.cli.ctl import PROGRAM, main
from ftstan.cli.program import EXIT_USAGE
from ftstan.cli.terminal import ago
from ftstan.drill.judge import judge
from ftstan.drill.ledger import Ack
from ftstan.drill.page import Timeline, page
from ftstan.drill.result import Result
from ftstan.drill.selftest import clean_ledger
from ftstan.nats import request
from ftstan.reports import _cell
from tests.datastores import grow
from tools.man_ftstanctl import leaves

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from ftstan.drill.ledger import Record

Capture = pytest.CaptureFixture[str]
_RAW = re.compile(r"\b(None|True|False|nan|NaN|inf|undefined|null)\b|\{'|\['")

#: A member of a release without the fields that have defaults, on a host without a name.
OLD: dict[str, Any] = {
    "cluster": "c",
    "group": "g",
    "server": "SRV1",
    "host": "",
    "pid": 0,
    "state": "FT_ACTIVE",
    "phase": "active",
    "serving": True,
    "paused": False,
    "mixed": False,
    "epoch": 1,
    "holder_epoch": 0,
    "holder": "",
    "store_id": "",
    "probe_age": None,
    "warm_lag": None,
    "uptime": 0.123456,
    "version": "",
}
STANDBY: dict[str, Any] = OLD | {
    "server": "SRV2",
    "state": "FT_STANDBY",
    "phase": "listening for the active server",
    "serving": False,
    "epoch": 0,
    "warm_lag": {"messages": 3, "seconds": 0.25},
}
CHANNEL = {
    "name": "orders",
    "msgs": 0,
    "bytes": 0,
    "first_seq": 0,
    "last_seq": 0,
    "subscriptions": 0,
    "quarantined": False,
    "moved": False,
}
CLIENT = {"id": "me", "hb_inbox": "", "subscriptions": 0, "failed_heartbeats": 0}
SUB = {
    "channel": "orders",
    "id": 1,
    "client_id": "",
    "inbox": "",
    "ack_inbox": "",
    "durable_name": "",
    "queue_name": "",
    "is_durable": True,
    "is_offline": True,
    "max_inflight": 1,
    "ack_wait": 30,
    "last_sent": 0,
    "pending_count": 0,
    "is_stalled": False,
}
EPOCH = {
    "epoch": 1,
    "server": "",
    "host": "",
    "pid": 0,
    "since_ns": 0,
    "until_ns": 0,
    "cause": "unreadable",
    "after": 0,
    "mixed": False,
}
#: What a server answers, by the verb that it is asked.
ANSWERS: dict[str, dict[str, Any]] = {
    "channels": {"rows": [CHANNEL]},
    "channel": {"rows": [CHANNEL]},
    "channel-purge": {"rows": [{"purged": 0, "left": 0, "next": 1}], "note": "purged"},
    "clients": {"rows": [CLIENT]},
    "client": {"rows": [CLIENT]},
    "subs": {"rows": [SUB]},
    "sub": {"rows": [SUB | {"oldest_unread_age_s": None}]},
    "history": {"history": [EPOCH]},
    "key-rotate": {"rows": [{"key": "k", "old": "", "old_until_ns": 0}], "note": "rotated"},
}
NOTHING: dict[str, dict[str, Any]] = {
    verb: {} for verb in ("channels", "clients", "subs", "history")
}
_VERB = re.compile(rb'\\?"verb\\?":\\?"([a-z-]+)')


class Answering:
    """Servers that answer from a table; ``fewer``: answers in place of those there."""

    def __init__(self, members: Sequence[dict[str, Any]], fewer: dict[str, dict[str, Any]]) -> None:
        self._members = members
        self._answers = ANSWERS | fewer
        self._switched = False

    def ask(self, subject: str, payload: bytes, seconds: float) -> bytes:
        del subject, seconds
        verb = _VERB.search(payload)
        assert verb is not None
        self._switched |= verb[1] == b"switchover"
        answer = self._answers.get(verb[1].decode(), {})
        return json.dumps({"ok": True, "note": "done"} | answer).encode()

    def ask_all(self, *_: object, **__: object) -> list[bytes]:
        members = self._members
        if self._switched:
            members = [OLD | {"server": "SRV2", "epoch": 2}]
        return [json.dumps({"ok": True, "status": one}).encode() for one in members]


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))

    def answer(members: Sequence[dict[str, Any]], fewer: dict[str, dict[str, Any]]) -> None:
        @contextlib.contextmanager
        def asking(*_: object, **__: object) -> Iterator[Answering]:
            yield Answering(members, fewer)

        monkeypatch.setattr(request, "asking", asking)

    return answer


#: Verbs that ask servers, with the least of words. {dir} has a datastore's key.
ASKED = (
    "channel ls", "channel report", "channel info orders", "channel create orders --dir {dir}",
    "channel delete orders --yes --dir {dir}", "channel purge orders --yes --dir {dir}",
    "channel moved orders on --yes --dir {dir}",
    "client ls", "client info me", "client kick me --yes --dir {dir}",
    "subscription ls", "subscription report", "subscription info orders 1",
    "server ls", "server info SRV1", "server reload SRV1 --dir {dir}",
    "server drain SRV1 --yes --dir {dir}",
    "ft status --group g", "ft status --group g --wide", "ft history --group g",
    "ft switchover --group g --yes --dir {dir}",
    "ft switchover --group g --at +1h --yes --dir {dir}",
    "ft switchover --group g --cancel --yes --dir {dir}",
    "ft pause --group g --yes --dir {dir}", "ft resume --group g --dir {dir}",
    "ft mixed on --group g --dir {dir}", "key rotate --yes --dir {dir}",
    "cluster status", "cluster stepdown --yes --dir {dir}", "cluster add n4 --dir {dir}",
    "cluster remove n1 --yes --dir {dir}",
)  # fmt: skip
#: Verbs that ask nobody, with what each needs.
ALONE = (
    "version", "explain FTS-2104", "drill --list", "drill --self-test", "drill kill --check",
    "context add here --server nats://h:4222", "context ls", "context select here",
    "context rm here",
    "key show --dir {dir}", "key nkey {dir}/new.nk", "systemd-dropin --datastore {store}",
    "store ls {store}", "store ls {store} --channel channel.0", "store du {store}",
    "store verify {store}",
    "store dump {store} --output table", "store repair {store} --dry-run", "store compact {store}",
    "store handover {store}", "store purge {store} channel.0 --keep 1 --dry-run",
    "store purge {store} channel.0 --keep 1 --yes",
    "store rekey {store} --encryption-key-file {dir}/keys --encryption-cipher AES",
    "store sql-schema postgres",
    "store copy {store} {dir}/copy", "ft status --dir {store}", "ft history --dir {store}",
    "store ls {empty}", "store verify {empty}",
)  # fmt: skip
#: They need a NATS server, or storage to attack: tests with such run them. What completion prints
#: is a program.
ELSEWHERE = {
    *("pub", "sub", "bench", "check-store", "completion", "channel redrive", "channel move"),
    *("cluster backup", "cluster seed", "cluster leave"),
    *(f"bridge {verb}" for verb in ("run", "status", "verify", "consumers", "cutover", "undo")),
}


def raw(text: str) -> list[str]:
    return [line for line in text.splitlines() if _RAW.search(line)]


def ran(capsys: Capture, line: str, **places: Any) -> list[str]:
    capsys.readouterr()
    status = main(line.format(**places).split())
    out = capsys.readouterr()
    assert status != EXIT_USAGE, out.err
    assert out.out or out.err or line.startswith("context"), line
    return [f"{line}: {one}" for one in raw(out.out + out.err)]


def test_every_verb_is_among_those_that_are_read_here() -> None:
    known = {" ".join(path) for path, _ in leaves(PROGRAM.build_parser())}
    lines = {*ASKED, *ALONE}
    missing = {
        verb for verb in known if not any(f"{line} ".startswith(f"{verb} ") for line in lines)
    }
    assert missing == ELSEWHERE


@pytest.mark.parametrize("fewer", [{}, NOTHING], ids=["something", "nothing"])
def test_no_verb_that_asks_servers_shows_a_raw_value(
    fewer: dict[str, dict[str, Any]],
    answering: Callable[..., None],
    tmp_path: Path,
    capsys: Capture,
) -> None:
    (tmp_path / KEY_NAME).write_text("ab" * 32 + "\n")
    (tmp_path / KEY_NAME).chmod(0o600)
    found = []
    for line in ASKED:
        answering([OLD, STANDBY] if line.startswith(("ft", "key")) else [OLD], fewer)
        found += ran(capsys, line, dir=tmp_path)
    assert found == []


def test_no_verb_that_asks_nobody_shows_a_raw_value(
    answering: Callable[..., None], tmp_path: Path, capsys: Capture
) -> None:
    answering([], {})
    (tmp_path / KEY_NAME).write_text("ab" * 32 + "\n")
    (tmp_path / KEY_NAME).chmod(0o600)
    grow(tmp_path / "store", 1)
    (tmp_path / "keys").write_text("a key of a test\n")
    (tmp_path / "keys").chmod(0o600)
    (tmp_path / "empty").mkdir()
    places = {"dir": tmp_path, "store": tmp_path / "store", "empty": tmp_path / "empty"}
    assert [one for line in ALONE for one in ran(capsys, line, **places)] == []


def test_fields_without_a_value_and_parts_of_values_are_words() -> None:
    assert _told(None) == _told("") == _told({}) == _told([]) == _told(float("nan")) == "-"
    assert (_told(True), _told(False), _told(0), _told(0.123456)) == ("yes", "no", "0", "0.1")
    assert _told({"messages": 3, "seconds": None}) == "messages 3, seconds -"
    assert ago(float("nan")) == ago(None) == "-"
    assert [_cell(x) for x in (None, True, False, float("nan"))] == ["-", "yes", "no", "-"]
    assert _cell((None, True)) == "-, yes"
    assert decode_answer(json.dumps({"ok": True, "status": OLD}).encode()).status is not None
    assert NodeStatus(**OLD).called == "SRV1"


def test_role_and_verdict_have_colours_on_a_terminal_only(
    answering: Callable[..., None], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    answering([OLD, STANDBY], {})
    main(["ft", "status", "--group", "g"])
    assert "\x1b" not in capsys.readouterr().out
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    main(["ft", "status", "--group", "g"])
    shown = capsys.readouterr().out
    assert re.search(r"\x1b\[1;32mactive *\x1b\[0m", shown)
    assert re.search(r"\x1b\[36mstandby *\x1b\[0m", shown)
    assert shown.splitlines()[-1].startswith("\x1b[1;32mhealthy")


def test_servers_are_listed_by_the_names_that_people_type() -> None:
    nodes = [
        NodeStatus(**(OLD | {"server": server, "name": name}))
        for server, name in (("S1", "node-a"), ("S2", "twin"), ("S3", "twin"), ("S4", ""))
    ]
    assert _told_apart(nodes) == ["node-a", "S2", "S3", "S4"]


def test_a_number_that_is_none_is_no_answer() -> None:
    with pytest.raises(WireError):
        decode_answer(json.dumps({"ok": True, "status": OLD | {"uptime": float("nan")}}).encode())


def _reports() -> Iterator[list[Record]]:
    records = clean_ledger()
    yield records
    yield []
    yield [x for x in records if not isinstance(x, Ack)]
    last = max(x.t for x in records if isinstance(x, Ack))
    # Acks never come back after the fault.
    yield [x for x in records if not isinstance(x, Ack) or x.t < last // 2]


@pytest.mark.parametrize("records", [*_reports()], ids=["clean", "empty", "no acks", "cut short"])
def test_reports_of_drills_and_of_the_demo_show_no_raw_value(
    records: list[Record], capsys: Capture
) -> None:
    result = Result("kill", "", 0, 0, judge(records), ("no takeover",))
    drill_command._show(result)
    shown = [capsys.readouterr().out, table(result.verdict)]
    shown += [switch_line(switch) for switch in result.verdict.switches]
    pages = page(result, Timeline.of(records)), page(replace(result, failures=()), Timeline.of([]))
    shown += [re.sub(r"(?s)<style>.*?</style>|<[^>]*>", " ", made) for made in pages]
    assert [line for one in shown for line in raw(one)] == []


def test_the_look_for_raw_values_finds_them() -> None:
    for text in ("age None", "held True", "False", "nan s", "lag {'messages': 3}"):
        assert raw(text) == [text]
    assert raw("no member, nonesuch, an infinite Truth") == []
