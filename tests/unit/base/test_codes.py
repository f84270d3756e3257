"""Every warning and error of ours has a code, and every code is that of a line."""

from __future__ import annotations

import ast
import json
import re
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import pytest

from ftstan.base import codes
from ftstan.base.codes.table import CODES, PLAIN, SECTIONS, Code
from tests.processes import ROOT
from tests.spoken import PACKAGE, is_spoken, spoken

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LEVELS = ("warning", "error", "critical", "fatal")
#: What a module that writes such a line has somewhere.
_WRITES = re.compile(rf"(\.(?:{'|'.join(LEVELS)}|_render)|\b(?:say|Log))\s*\(")
#: Half of the log, by the words with which modules name it.
NATS = ("log.nats", "self._sink", "sink")
#: Lines that are written in one place and made in others: what is written, and one line or more
#: that it may be.
_REACHED = 'Reached limits for store "..".. (..), dropping old messages'
ELSEWHERE = {
    ("admin/service.py", "..: refused: .."): ("audit: .. asked for: ....",),
    ("admin/service.py", "..: ..: .."): ("audit: .. asked for: ....",),
    ("base/log/files.py", "<why>"): ("Unable to rotate logfile ..",),
    ("base/log/writer.py", "..: .."): ("1 log line is lost", ".. log lines are lost"),
    ("broker/broker.py", "channel ..: .."): ("channel ..: ..",),
    ("broker/subscriptions.py", "<text>"): (
        "[Client:..] Duplicate durable subscription registration",
    ),
    ("ft/access.py", "<line>"): (
        "datastore .. belongs to .., and this server runs as ..",
        "everybody may write to the datastore ..",
        "everybody may write to .... in the datastore ..",
        "datastore .. on .. mounted at ..",
    ),
    ("ft/active.py", "<line>"): (
        'ft: serverID ".." claims to be active',
        "Error decoding activation time: ..",
        'ft: serverID ".." is active in this group on another datastore',
    ),
    ("ft/ownership.py", "<error.text>"): ("old claims cannot be removed: ..",),
    ("ft/ownership.py", "..; .."): (".. cannot be made: ..",),
    ("ft/standby.py", "<stranger_line(beat)>"): (
        'ft: serverID ".." is active in this group on another datastore (..)',
    ),
    ("ft/standby.py", "<text>"): (
        "ft: storage has not answered for ..s: waiting for storage lock",
        "ft: this server could not become active: ..",
    ),
    ("ft/standby.py", "<f'{text}; {done.hint}' if done.hint else text>"): (
        "ft: error attempting to get the store lock: ft: fatal error getting the store lock: ..",
    ),
    ("ft/standby.py", "<self._store.complaint()>"): ("ft: not the group's datastore: ..",),
    ("ft/standby.py", "<taking_line(done.owner, gone)>"): (
        "ft: TAKING THE DATASTORE WITHOUT ITS LOCK: ..",
    ),
    ("nats/tasks.py", "<why>"): ("the task .. ended: ..", "out of memory"),
    ("node/admin_listener.py", "..; .."): (".. cannot be made: ..",),
    ("node/clustered.py", "<PREVIEW>"): ("cluster: clustering is a preview in this version, ..",),
    ("node/clustered.py", "<SHARED>"): ("cluster: the log shares an account with other users: ..",),
    ("node/clustered.py", "<UNSYNCED>"): ("cluster: -cluster_sync=false: a power cut ..",),
    ("node/group.py", "<line>"): ("ft: mixed group: ft_hb_interval is ..",),
    ("node/group.py", "<not_mixed_line(beat.server_id)>"): (
        'ft: serverID ".." says without an epoch that it is active: ..',
    ),
    ("node/node.py", "<line>"): (
        "-.. has no effect: ..",
        "TLS certificate chain and hostname will not be verified. DO NOT USE IN PRODUCTION!",
    ),
    ("node/partition_exchange.py", "<text>"): (
        "unable to send channels list: ..",
        "Error sending reply to partitioning request: ..",
        "Error processing partitioning request: ..",
    ),
    ("node/protection.py", "<step>"): (
        "the clock of this host was set .. s ahead",
        "the clock of this host was set back by .. s: ..",
    ),
    ("node/reload.py", "<line>"): (
        "TLS certificate chain and hostname will not be verified. DO NOT USE IN PRODUCTION!",
    ),
    ("node/reload.py", "<ONLY_EMBEDDED>"): (
        "Reload supported only for embedded NATS Server's configuration",
    ),
    ("stores/encryption/store.py", "<text>"): (
        "Error looking up message ..:.. (..)",
        "the encryption key does not decrypt the newest message of ..",
    ),
    ("stores/encryption/store.py", "..: it is not served"): (
        "the encryption key does not decrypt the newest message of ..",
    ),
    ("stores/file/log/retention.py", "<text>"): (
        "Unable to remove first message: ..",
        "Error during expiration: ..",
    ),
    (
        "stores/file/log/retention.py",
        "<reached_limits(show(self.name), self.count, self.size, limits)>",
    ): (_REACHED,),
    ("stores/file/recovery/damage.py", "<line>"): ("Record header:", " Bytes:", "  .."),
    ("stores/file/recovery/opening.py", 'channel "..": ..: ..'): (
        "..it is damaged: messages that were purged may be shown again",
    ),
    (
        "stores/file/rootfiles.py",
        "..: it is left alone, and the server does without; run: ftstanctl store verify",
    ): ('".." in the datastore is .., where a server keeps a file',),
    (
        "stores/file/state/confirmed.py",
        "..; readers of the live store stop where it says",
    ): ('channel "..": .. cannot be written: ..',),
    ("stores/file/upkeep.py", "<text>"): ('channel "..": .. cannot be removed: ..',),
    ("stores/memory.py", "<reached_limits(shown, self.count, self.size, limits)>"): (_REACHED,),
    ("stores/sql/channel.py", "<reached_limits(self.text, count, size, limits)>"): (_REACHED,),
}
#: Codes whose line is put together of several texts.
COMPOSED = {
    1203: (
        "datastore .. on .. mounted at ..",
        "..: who owns the datastore is read through this host's cache",
    ),
    1204: ("datastore .. on .. mounted at ..",),
    1205: ("ft: ..: ", "datastore .. on .. mounted at .."),
    3207: ("channel ..: ..", "the channel takes nothing new: its files name .. .."),
    4017: ('".." in the datastore is .., where a server keeps a file',),
    4107: (
        'channel "..": .. cannot be written: ..',
        "..; readers of the live store stop where it says",
    ),
}
#: Lines of the other half that the NATS server has, or has in other words: they stay as they are.
THEIRS = {
    ("cli/serving.py", "<error.text>"),
    ("nats/childlog.py", "<line.text>"),
    (
        "nats/direct_road.py",
        ".. - Slow Consumer Detected: more waits for it than max_pending allows",
    ),
    ("nats/direct_road.py", "..:.. - TLS handshake error: .."),
}


class Call(NamedTuple):
    """A line that a module writes: where, the line as a page has it, and what else is given."""

    place: str
    half: str
    line: str
    code: str


def text_of(node: ast.expr) -> str:
    """A text as a page writes it; the source where it is no literal."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(str(v.value) if isinstance(v, ast.Constant) else ".." for v in values)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return text_of(left) + text_of(right)
        case _:
            return f"<{ast.unparse(node)}>"


def calls_of(path: Path, root: Path = PACKAGE) -> list[Call]:
    """The warnings and errors that a module writes."""
    source = path.read_text("utf-8")
    # Each worker of a run reads the package before its first test.
    if not _WRITES.search(source):
        return []
    nodes = list(ast.walk(ast.parse(source)))
    place = str(path.relative_to(root))
    is_nats = any(
        isinstance(node, ast.ImportFrom)
        and node.module == "ftstan.base.log"
        and any(name.name == "nats" and name.asname == "log" for name in node.names)
        for node in nodes
    )
    found = []
    for node in nodes:
        if not isinstance(node, ast.Call) or not node.args:
            continue
        text = node.args[0]
        given = node.keywords
        match node.func:
            case ast.Attribute(value=whose, attr=attr) if attr in LEVELS:
                half = ast.unparse(whose)
                if not ("log" in half or half in NATS):
                    continue
            case ast.Name(id="say") if "log" in ast.unparse(text):
                half = ast.unparse(text)
                if isinstance(text, ast.Call):
                    given = text.keywords
                text = node.args[1]
            case ast.Name(id="Log") if ast.unparse(text) in ("Level.WARNING", "Level.ERROR"):
                half = "log"
                text = node.args[1]
            case ast.Attribute(attr="_render") if ast.unparse(text) in ("WARNING", "ERROR"):
                half = "log"
                text = node.args[1]
            case _:
                continue
        code = next((text_of(k.value) for k in given if k.arg == "code"), "")
        nats = half in NATS or (is_nats and half == "log")
        found.append(Call(place, "nats" if nats else "stream", text_of(text), code))
    return found


@cache
def calls() -> tuple[Call, ...]:
    """The warnings and errors of the whole package."""
    return tuple(call for path in sorted(PACKAGE.rglob("*.py")) for call in calls_of(path))


def is_told(call: Call) -> bool:
    """Whether a line has a code, or is known to have none."""
    where = (call.place, call.line)
    return bool(call.code) or where in {*ELSEWHERE, *THEIRS} or is_known(call.line, call.half)


def is_known(line: str, half: str = "stream") -> bool:
    return codes.of(line, half) is not None


def parsed(source: str, folder: Path) -> list[Call]:
    """The calls of a module with this text."""
    path = folder / "module.py"
    path.write_text(source)
    return calls_of(path, folder)


def test_a_line_without_a_code_is_noticed(tmp_path: Path) -> None:
    source = """
log.stream.warning(f"something {new} happened")
log.error(f"{text}: as it was", code="FTS-4106")
say(partial(log.stream.fatal, code="FTS-2199"), why, 1.0)
[Log(Level.ERROR, line)]
log.info("nothing of the kind")
log.stream.error("Internal error: in a test")
"""
    found = parsed(source, tmp_path)
    untold = {call.line for call in found if not is_told(call)}
    assert untold == {"something .. happened", "<line>"}
    assert len(found) == 5


def test_the_walk_finds_the_lines() -> None:
    assert len(calls()) > 150
    assert {call.half for call in calls()} == {"stream", "nats"}


@pytest.mark.parametrize("call", calls(), ids=lambda call: f"{call.place}: {call.line[:60]}")
def test_each_line_has_a_code_or_is_the_originals(call: Call) -> None:
    assert is_told(call), "give it a code in ftstan/base/codes/table.py"


def test_lines_made_elsewhere_are_spoken_and_have_codes() -> None:
    written = {(call.place, call.line) for call in calls()}
    assert {*ELSEWHERE, *THEIRS} <= written
    for lines in ELSEWHERE.values():
        for line in lines:
            assert is_spoken(line, spoken()), line
            assert is_known(line) or is_begun(line), line


def is_begun(line: str) -> bool:
    """Whether a line that is declared begins so: its end is where it is written."""
    known = [code.line for code in CODES] + list(PLAIN)
    return any(one.startswith(line.removesuffix("..")) for one in known)


@pytest.mark.parametrize("code", CODES, ids=lambda code: code.name)
def test_each_code_has_a_line(code: Code) -> None:
    if code.number in COMPOSED:
        pieces = COMPOSED[code.number]
        assert not is_spoken(code.line, spoken())
        assert all(is_spoken(piece, spoken()) for piece in pieces)
        words = code.line.replace("..", " ").split()
        assert all(word.strip(':"') in " ".join(pieces) for word in words)
    elif code.line:
        assert is_spoken(code.line, spoken())
    if code.line:
        assert codes.of(code.line.replace("..", "x"), code.half) == code.name
    else:
        assert any(call.code == code.name for call in calls())


@pytest.mark.parametrize("line", PLAIN)
def test_each_line_without_a_code_is_one_of_the_code(line: str) -> None:
    assert is_spoken(line, spoken())
    assert codes.of(line.replace("..", "x")) == ""


def strings(value: object) -> Iterator[str]:
    """The lines of a recording, wherever they stand in it."""
    match value:
        case str():
            yield from value.splitlines()
        case dict():
            for inside in value.values():
                yield from strings(inside)
        case list():
            for inside in value:
                yield from strings(inside)


def test_no_line_that_an_original_has_written_has_a_code() -> None:
    data = ROOT / "tests" / "data"
    recordings = [json.loads(path.read_text("utf-8")) for path in data.rglob("*.json")]
    recordings += [path.read_text("utf-8", "replace") for path in data.rglob("*.txt")]
    head = re.compile(r"\[(?:WRN|ERR|FTL)\] (STREAM: )?(.*)")
    found = [head.search(line) for recording in recordings for line in strings(recording)]
    lines = {(one[2], "stream" if one[1] else "nats") for one in found if one is not None}
    assert len(lines) > 100
    assert [line for line, half in lines if codes.of(line, half)] == []


def test_codes_that_a_call_gives_exist() -> None:
    given = {call.code for call in calls() if call.code}
    assert given <= {code.name for code in CODES}
    assert given


def test_numbers_are_told_once_in_order_and_belong_to_a_section() -> None:
    numbers = [code.number for code in CODES]
    assert numbers == sorted(set(numbers))
    assert {number // 1000 for number in numbers} == set(SECTIONS)
    assert all(1000 <= number <= 9999 for number in numbers)
    lines = [code.line for code in CODES if code.line] + list(PLAIN)
    assert len(lines) == len(set(lines))


def test_pages_have_the_sections_that_codes_name() -> None:
    for code in CODES:
        if code.page:
            file, _, section = code.page.partition("#")
            text = (ROOT / "docs" / file).read_text("utf-8")
            assert not section or section in anchors(text), code.page


def anchors(page: str) -> set[str]:
    """The names of a page's sections."""
    heads = re.findall(r"^#+ (.*)$", page, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}
