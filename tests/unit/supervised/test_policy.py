"""Nodes under supervisord: what is started again, and what the listener says of an end."""

from __future__ import annotations

import configparser
import io
import re
import socketserver
import subprocess
import sys
import threading
import xmlrpc.client
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ftstan.supervised.listener import Listener, parse
from ftstan.supervised.policy import LISTENER_EVENTS, NODE_POLICY, STAY_DOWN, meaning, section
from ftstan.supervised.rpc import SupervisorError, call

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]
LOG = """\
2026-01-01 00:00:00,000 WARN exited: a (exit status 75; not expected)
2026-01-01 00:00:01,000 INFO exited: b (exit status 143; expected)
2026-01-01 00:00:02,000 WARN exited: c (terminated by SIGKILL; not expected)
"""


def event(name: str, kind: str = "PROCESS_STATE_EXITED", *, expected: int = 0) -> str:
    body = f"processname:{name} groupname:{name} from_state:RUNNING expected:{expected} pid:7"
    return f"ver:3.0 server:s serial:1 pool:p poolserial:1 eventname:{kind} len:{len(body)}\n{body}"


def heard(*events: str, tail: str = LOG, run: list[str] | None = None) -> tuple[list[str], str]:
    """What a listener reports, without its times, and what it answers to supervisord."""
    lines: list[str] = []
    answers = io.StringIO()
    Listener(io.StringIO("".join(events)), answers, lines.append, lambda: tail, run or []).serve()
    return [line.partition(" ")[2] for line in lines], answers.getvalue()


def test_a_fenced_node_is_told_from_one_that_was_stopped_or_killed() -> None:
    lines, _ = heard(event("a"), event("b", expected=1), event("c"))
    assert lines == [
        "FENCED a (75): fenced: it may or can not serve now; started again, as a standby",
        "ENDED b (143): stopped by SIGTERM; not started again",
        "ENDED c (SIGKILL): killed by a signal; started again",
    ]


def test_of_several_ends_the_last_one_counts() -> None:
    lines, _ = heard(event("a"), tail=LOG + LOG.replace("75", "2"))
    assert lines == ["ENDED a (2): a bug, its log says where to report it; started again"]


def test_an_end_that_supervisord_s_log_does_not_hold_is_told_without_its_status() -> None:
    lines, _ = heard(event("a"), event("a", expected=1), tail="")
    assert lines == [
        "ENDED a: status unknown; started again",
        "ENDED a: status unknown; not started again",
    ]


def test_a_node_that_supervisord_gave_up_is_told() -> None:
    lines, _ = heard(event("a", "PROCESS_STATE_FATAL"))
    assert lines[0].startswith("ENDED a: supervisord gave up")


def test_every_event_is_answered_and_the_listener_ends_with_the_pipe() -> None:
    _, answers = heard(event("a"), event("x", "PROCESS_STATE_STARTING"))
    assert answers == "READY\nRESULT 2\nOKREADY\nRESULT 2\nOKREADY\n"


def test_a_command_hears_of_each_end_and_may_fail(tmp_path: Path) -> None:
    out = tmp_path / "said"
    heard(
        event("a"),
        run=[
            sys.executable,
            "-c",
            f"import sys; open({str(out)!r}, 'w').write('|'.join(sys.argv[1:]))",
        ],
    )
    assert out.read_text() == f"a|75|{meaning(75)}"
    lines, answers = heard(event("a"), run=["/does/not/exist"])
    assert "/does/not/exist" in lines[-1]
    assert answers.count("RESULT") == 1


def test_words_of_an_event_are_read() -> None:
    assert parse("ver:3.0 poolserial:9 len:1") == {"ver": "3.0", "poolserial": "9", "len": "1"}


@pytest.mark.parametrize("status", [0, 1, 2, 75, 130, 143])
def test_what_is_said_of_a_status_is_what_the_policy_does(status: int) -> None:
    assert meaning(status).endswith("not started again") is (status in STAY_DOWN)


def test_the_shipped_file_says_what_the_policy_says() -> None:
    file = configparser.ConfigParser(interpolation=None)
    file.read(ROOT / "packaging" / "supervisor" / "ftstan.conf")
    program = file["program:ftstan"]
    assert {key: program[key] for key in NODE_POLICY} == dict(NODE_POLICY)
    assert file["eventlistener:ftstan-ends"]["events"] == LISTENER_EVENTS
    assert "ftstan.supervised.listener" in file["eventlistener:ftstan-ends"]["command"]


def test_the_policy_is_that_of_the_page_about_groups() -> None:
    page = (
        (ROOT / "docs" / "ft.md")
        .read_text("utf-8")
        .partition("### Exit statuses")[2]
        .partition("###")[0]
    )
    rows = dict(re.findall(r"^\| (\d+) \|.*\| (.*) \|$", page, re.MULTILINE))
    assert {
        int(status)
        for status, what in rows.items()
        if "leave it" in what or "changes nothing" in what
    } == set(STAY_DOWN)


def test_words_of_a_command_survive_supervisord_s_file() -> None:
    text = section("program:a", ["/bin/x", 'with "quotes"', "100%"], {"autorestart": "true"})
    assert text == '[program:a]\ncommand="/bin/x" "with \\"quotes\\"" "100%%"\nautorestart=true\n'


def test_the_listener_outside_supervisord_says_who_starts_it() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ftstan.supervised.listener"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 1
    assert "started by supervisord" in done.stderr


class Handler(BaseHTTPRequestHandler):
    """A supervisord that knows one method."""

    def address_string(self) -> str:
        return "local"

    def log_message(self, *_: object) -> None:
        pass

    def do_POST(self) -> None:  # the library's name
        arguments, method = xmlrpc.client.loads(
            self.rfile.read(int(self.headers["Content-Length"]))
        )
        answer: object = (f"{method}{arguments}",)
        if method == "supervisor.startProcess":
            answer = xmlrpc.client.Fault(60, "ALREADY_STARTED")
        body = xmlrpc.client.dumps(answer, methodresponse=True).encode()  # type: ignore[arg-type]
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def socket_path(tmp_path: Path) -> Iterator[str]:
    path = str(tmp_path / "s")
    with socketserver.UnixStreamServer(path, Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield path
        finally:
            server.shutdown()
            thread.join()


def test_supervisord_is_asked_through_its_socket(socket_path: str) -> None:
    assert call(socket_path, "readLog", -5, 0) == "supervisor.readLog(-5, 0)"


def test_a_refusal_and_a_missing_supervisord_are_one_line_each(
    socket_path: str, tmp_path: Path
) -> None:
    with pytest.raises(SupervisorError, match="refuses startProcess: ALREADY_STARTED"):
        call(socket_path, "startProcess", "a")
    with pytest.raises(SupervisorError, match="does not answer"):
        call(str(tmp_path / "none"), "getState")
