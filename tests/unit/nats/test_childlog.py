"""The child's lines on their way into our log."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ftstan.nats.childlog import Line, LineSplitter, ServerLines, parse_line


def test_the_prefix_is_taken_off_and_the_level_kept() -> None:
    raw = b"[12] 2026/11/21 14:59:12.098494 [INF] Server is ready"
    assert parse_line(raw) == Line("info", "Server is ready")


def test_a_prefix_without_time_is_understood() -> None:
    assert parse_line(b"[12] [WRN]   two blanks kept") == Line("warning", "  two blanks kept")


def test_a_line_without_prefix_has_no_level() -> None:
    assert parse_line(b"panic: \xff") == Line(None, "panic: \ufffd")


def test_lines_about_our_private_files_and_ports_are_not_wanted() -> None:
    assert not parse_line(b"[1] [INF] Using configuration file: /tmp/x/nats.conf (sha256:0)").wanted
    assert not parse_line(b"[1] [INF] Starting http monitor on 127.0.0.1:39121").wanted
    assert parse_line(b"[1] [INF] Listening for client connections on 0.0.0.0:4222").wanted


@given(
    st.lists(st.binary(max_size=30).map(lambda b: b.replace(b"\n", b"").replace(b"\r", b""))),
    st.integers(1, 7),
)
def test_lines_are_the_same_however_the_pipe_cuts_them(lines: list[bytes], size: int) -> None:
    stream = b"".join(line + b"\n" for line in lines) + b"rest"
    splitter = LineSplitter()
    got: list[bytes] = []
    for start in range(0, len(stream), size):
        got += splitter.feed(stream[start : start + size])
    got += splitter.feed(b"")
    assert got == [*lines, b"rest"]


def test_lines_about_servers_that_come_and_go_are_bounded_and_counted() -> None:
    lines = ServerLines()
    flood = Line("info", "127.0.0.1:55164 - rid:12 - Router connection closed: Parse Error")
    passed = sum(lines.allows(flood, 10.0 + n / 100) for n in range(1000))
    assert passed == lines.BURST + 9
    assert lines.take_left_out() == 1000 - passed
    assert lines.take_left_out() == 0
    assert lines.allows(Line("info", "Server is ready"), 20.0)
    assert lines.allows(Line("trace", "127.0.0.1:55164 - rid:12 - <<- [RS+ A b]"), 20.0)
    assert not lines.allows(Line("error", "127.0.0.1:5 - gid:3 - Authorization"), 19.995)
    assert sum(lines.allows(flood, 3600.0) for _ in range(1000)) == lines.BURST
