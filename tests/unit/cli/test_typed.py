"""``ftstanctl`` as people type it: options anywhere, hints, one status, reports, names."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING, Any

import nkeys
import pytest

from ftstan.base.errors import ConfigError
from ftstan.cli import contexts
from ftstan.cli.ctl import COMMANDS, PROGRAM, in_full, main
from ftstan.cli.pipeline import command as pipeline
from ftstan.cli.program import EXIT_USAGE
from ftstan.cli.reports import channel_report, subscription_report
from ftstan.cli.terminal import ago, own_flags, print_table
from ftstan.cli.wordorder import in_order
from ftstan.version import __version__
from tools.man_ftstanctl import leaves

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

Capture = pytest.CaptureFixture[str]


def read(*words: str) -> argparse.Namespace:
    return PROGRAM._read(words)  # what the program does first


@pytest.mark.parametrize(
    "words",
    [
        ("pub", "orders", "--count", "2", "text"),
        ("pub", "--count=2", "orders", "text"),
        ("pub", "orders", "text", "--count", "2"),
        ("--count", "2", "pub", "orders", "text"),
        ("pub", "orders", "--cou", "2", "--", "text"),
    ],
)
def test_options_may_stand_anywhere(words: tuple[str, ...]) -> None:
    got = read(*words)
    assert (got.channel, got.data, got.count) == ("orders", "text", 2)


def test_what_follows_two_dashes_and_negative_numbers_are_no_options() -> None:
    assert read("pub", "orders", "--", "--count").data == "--count"
    assert read("pub", "orders", "-5").data == "-5"


def test_options_of_a_command_may_stand_before_its_verb() -> None:
    got = read("ft", "--group", "g", "status", "--output", "json")
    assert (got.verb, got.group, got.output) == ("status", "g", "json")


@pytest.mark.parametrize(
    ("words", "seconds"),
    [
        (("ft", "status", "--watch", "1", "--dir", "/d"), 1.0),
        (("ft", "status", "--dir", "/d", "--watch", "1"), 1.0),
        (("ft", "status", "--watch", "--dir", "/d"), 2.0),
        (("ft", "--watch", "status", "--dir", "/d"), 2.0),
    ],
)
def test_an_option_that_may_do_without_a_value_keeps_the_one_that_it_has(
    words: tuple[str, ...], seconds: float
) -> None:
    got = read(*words)
    assert (got.verb, got.watch, got.dir) == ("status", seconds, "/d")


def test_a_table_on_a_small_terminal_cuts_no_cell(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    row = [f"value-{at}-of-a-wide-row" for at in range(8)]
    print_table([f"head {at}" for at in range(8)], [row], right=("head 3",))
    heads, values = capsys.readouterr().out.splitlines()
    assert values.split() == row
    assert "\x1b[1m" in heads


def test_words_that_are_in_order_stay_as_they_are() -> None:
    parser = PROGRAM.build_parser()
    words = ["ft", "switchover", "--to", "x", "--wait", "3"]
    assert in_order(parser, words) == words
    assert in_order(parser, ["nothing", "--to", "x"]) == ["nothing", "--to", "x"]


def test_the_version_is_told_as_by_other_programs(capsys: Capture) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"ftstan {__version__}\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_wrong_words_have_one_status_whatever_the_command(name: str, capsys: Capture) -> None:
    assert main([name, "--no-such-flag"]) == EXIT_USAGE == 64
    assert capsys.readouterr().err.count("hint: ") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("pub", "a", "b", "--coutn", "2"), "hint: did you mean --count? see ftstanctl pub --help"),
        (("ft", "stats"), 'did you mean "status"?'),
        (("staore",), 'did you mean "store"?'),
    ],
)
def test_a_slip_is_answered_with_the_nearest_word(
    words: tuple[str, ...], said: str, capsys: Capture
) -> None:
    assert main(list(words)) == EXIT_USAGE
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_each_command_has_two_examples_that_can_be_typed(
    name: str, capsys: Capture
) -> None:
    examples = COMMANDS[name].examples
    assert len(examples) == 2
    with pytest.raises(SystemExit, match="0"):
        main([name, "--help"])
    shown = capsys.readouterr().out
    for example in examples:
        assert f"\n  ftstanctl {example}\n" in shown
        words = shlex.split(example)
        assert words[0] == name
        assert read(*words).command == name


LEAVES = {" ".join(path): parser for path, parser in leaves(PROGRAM.build_parser())}


def shown_examples(help_text: str, program: str) -> list[list[str]]:
    """The words of the examples in a help, behind the program's name."""
    _, _, below = help_text.partition("examples:\n")
    lines = [line.strip() for line in below.partition("\n\n")[0].splitlines()]
    found = [shlex.split(line) for line in lines]
    assert [words[0] for words in found] == [program] * len(found)
    return [words[1:] for words in found]


@pytest.mark.parametrize("verb", LEAVES)
def test_the_help_of_each_verb_has_two_examples_of_it_that_its_parser_takes(verb: str) -> None:
    examples = shown_examples(LEAVES[verb].format_help(), "ftstanctl")
    assert len(examples) == 2
    assert examples[0] != examples[1]
    for words in examples:
        ordered = in_order(PROGRAM.build_parser(), in_full(words))
        read(*in_full(words))
        assert " ".join(ordered).startswith(verb)


def test_an_example_with_a_wrong_flag_would_be_found() -> None:
    with pytest.raises(ConfigError):
        read("ft", "status", "--gruop", "orders")
    assert shown_examples("x\n\nexamples:\n  p a 'b c'\n\nExit", "p") == [["a", "b c"]]


@pytest.mark.parametrize("name", sorted(pipeline.COMMANDS))
def test_the_help_of_each_command_of_the_pipeline_has_two_as_well(name: str) -> None:
    parsers = dict(leaves(pipeline.PROGRAM.build_parser()))
    examples = shown_examples(parsers[name,].format_help(), "ftstan-pipeline")
    assert len(examples) == 2
    for words in examples:
        assert pipeline.PROGRAM._read(words).command == name


def test_hints_name_the_flags_of_this_command() -> None:
    theirs = "give what this NATS server expects: -user and -pass, -auth, nkey_seed_file or "
    assert own_flags(theirs + "credentials").endswith(
        "--user and --pass, --auth, --nkey or --creds"
    )
    assert own_flags("start the NATS server, or correct -ns") == (
        "start the NATS server, or correct --server"
    )
    assert own_flags("check --user") == "check --user"
    assert own_flags("nkey_seed_file names a file that the user of this server must be able") == (
        "--nkey names a file that the user of this command must be able"
    )
    assert own_flags("take away -secure, -tls_client_* and tls://") == (
        "take away --tls... and tls://"
    )
    assert own_flags("or say one: tls_hostname") == "or say one: --tlsname"


def test_the_key_of_what_changes_something_is_found_through_the_context(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    contexts.save("here", contexts.Context(dir="/nss/orders"))
    for words in (("channel", "create", "a"), ("ft", "pause"), ("server", "drain")):
        got = read(*words, "--context", "here")
        contexts.fill(got)
        assert got.dir == "/nss/orders"


CHANNELS = [
    {"name": "a", "first_seq": 11, "last_seq": 50, "msgs": 40},
    {"name": "b", "first_seq": 1, "last_seq": 9, "msgs": 9},
    {"name": "c", "first_seq": 0, "last_seq": 0, "msgs": 0},
]


def sub(channel: str, number: int, sent: int, **more: Any) -> dict[str, Any]:
    usual = {"queue_name": "", "is_offline": False, "is_stalled": False, "pending_count": 0}
    return {"channel": channel, "id": number, "last_sent": sent, **usual, **more}


def test_the_reader_that_lost_most_and_is_the_furthest_behind_comes_first() -> None:
    rows = subscription_report(
        CHANNELS,
        [
            sub("c", 1, 0),
            sub("b", 2, 9),
            sub("b", 3, 2, is_stalled=True),
            sub("a", 4, 4, is_offline=True),
            sub("a", 5, 50, queue_name="q"),
            sub("a", 6, 3, queue_name="q"),
        ],
    )
    told = [(r["id"], r["state"], r["lag"], r["oldest_unread"], r["lost_to_limits"]) for r in rows]
    assert told == [
        (4, "offline", 40, 11, 6),
        (3, "stalled", 7, 3, 0),
        (5, "live", 0, 0, 0),
        (6, "live", 0, 0, 0),
        (2, "live", 0, 0, 0),
        (1, "live", 0, 0, 0),
    ]
    (a, b, c) = channel_report(CHANNELS, rows)
    assert [a["name"], a["lag"], a["lost_to_limits"], a["stalled"]] == ["a", 40, 6, 0]
    assert [b["name"], b["lag"], b["stalled"], c["name"]] == ["b", 7, 1, "c"]


def test_ages_are_those_of_the_worst_reader_and_of_the_last_ack() -> None:
    rows = subscription_report(
        CHANNELS,
        [
            sub("b", 1, 4, oldest_unread_age_s=30.5, last_ack_age_s=60.0),
            sub("b", 2, 2, oldest_unread_age_s=90.0, last_ack_age_s=None),
            # Sent everything since its server was asked: nothing is unread any more.
            sub("b", 3, 9, oldest_unread_age_s=1.0, last_ack_age_s=2.0),
            # A server of a release that tells no ages.
            sub("a", 4, 20),
        ],
    )
    told = {r["id"]: (r["oldest_unread_age_s"], r["last_ack_age_s"]) for r in rows}
    assert told == {1: (30.5, 60.0), 2: (90.0, None), 3: (None, 2.0), 4: (None, None)}
    found = {row["name"]: row for row in channel_report(CHANNELS, rows)}
    assert (found["b"]["oldest_unread_age_s"], found["b"]["last_ack_age_s"]) == (90.0, 2.0)
    assert (found["a"]["oldest_unread_age_s"], found["c"]["last_ack_age_s"]) == (None, None)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (None, "-"),
        (0.4, "0 s ago"),
        (59.9, "59 s ago"),
        (61, "1 min 1 s ago"),
        (3 * 3600 + 60, "3 h 1 min ago"),
        (50 * 3600, "2 d 2 h ago"),
    ],
)
def test_an_age_is_told_in_its_two_largest_units(seconds: float | None, said: str) -> None:
    assert ago(seconds) == said


def test_names_are_listed_one_a_line_for_completion(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, capsys: Capture
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("lab", "prod"):
        contexts.save(name, contexts.Context(server="nats://x:1"))
    assert main(["context", "ls", "--output", "names"]) == 0
    assert capsys.readouterr().out == "lab\nprod\n"


def test_a_users_nkey_is_made_for_its_owner_and_never_over_another(
    tmp_path: Path, capsys: Capture
) -> None:
    seed = tmp_path / "client.nk"
    assert main(["key", "nkey", str(seed)]) == 0
    public = capsys.readouterr().out.strip()
    assert seed.stat().st_mode & 0o777 == 0o600
    made = seed.read_text()
    assert nkeys.from_seed(bytearray(made.strip().encode())).public_key.decode() == public
    assert main(["key", "nkey", str(seed)]) == 3
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines() == [
        f"cannot write {seed}: File exists",
        "hint: name a file that does not exist, in a directory that does",
    ]
    assert seed.read_text() == made


def test_a_channel_that_looks_like_a_mistyped_verb_is_told_on_a_terminal_only(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(channel: str, *, terminal: bool) -> str:
        monkeypatch.setattr("sys.stderr.isatty", lambda: terminal, raising=False)
        nobody = ["--server", "nats://127.0.0.1:1", "--connect-timeout", "0.1"]
        assert main(["sub", channel, "--count", "1", *nobody]) == 3
        return capsys.readouterr().err

    told = start("lss", terminal=True)
    assert told.startswith("reading the channel lss\nhint: did you mean ftstanctl sub ls?\n")
    assert "did you mean ftstanctl sub info?" in start("inof", terminal=True)
    assert "reading" not in start("lss", terminal=False)
    assert "reading" not in start("orders", terminal=True)


@pytest.mark.parametrize(
    ("words", "forms"),
    [
        (("ft", "switchover", "--at", "25:00"), "time (03:00, 2026-11-28T03:00 or +2h)"),
        (("ft", "status", "--watch", "zero"), "number of seconds (above 0, at most 3600)"),
        (("key", "rotate", "--grace", "soon"), "duration (90s, 15m or 1h30m, at most 720h)"),
    ],
)
def test_a_wrong_value_is_answered_with_the_forms_that_it_may_have(
    capsys: Capture, words: tuple[str, ...], forms: str
) -> None:
    assert main(words) == 64
    assert f"invalid {forms} value: {words[-1]!r}" in capsys.readouterr().err
