"""What holds for every command of ``ftstanctl``, whoever wrote it: JSON, exit statuses, help, the
manual page.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from ftstan import COMPATIBLE_VERSION, __version__
from ftstan.base.errors import NatsError
from ftstan.cli.contexts import SETTINGS
from ftstan.cli.ctl import COMMANDS, PROGRAM, main
from ftstan.cli.program import EXIT_USAGE
from ftstan.cli.terminal import complain, say
from tools.man_ftstanctl import actions, leaves, manual

LEAVES = {" ".join(path): parser for path, parser in leaves(PROGRAM.build_parser())}

#: What they print is a program of a shell, or of a database.
NO_JSON = {"completion", "store sql-schema"}

#: Only their words can be wrong.
ONLY_WORDS = {"completion", "version"}


@pytest.mark.parametrize("words", sorted(set(LEAVES) - NO_JSON))
def test_every_verb_prints_json(words: str) -> None:
    (output,) = [action for action in actions(LEAVES[words]) if "--output" in action.option_strings]
    assert output.choices is not None
    assert "json" in output.choices


def test_every_word_is_described() -> None:
    bare = [
        f"{words} {'/'.join(action.option_strings)}"
        for words, parser in LEAVES.items()
        for action in actions(parser)
        if action.option_strings and not action.help
    ]
    assert bare == []


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_the_help_of_a_command_says_what_its_exit_statuses_mean(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = COMMANDS[name].load()
    meant = {0, EXIT_USAGE} | ({command.failed} if name not in ONLY_WORDS else set())
    assert meant - set(command.statuses) == set()
    with pytest.raises(SystemExit, match="0"):
        main([name, "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    for status, text in command.statuses.items():
        assert f"{status}: {text}" in shown


def test_the_manual_page_has_every_command_option_exit_status_and_variable() -> None:
    page = manual().replace("\\-", "-")
    assert [words for words in LEAVES if f".SS ftstanctl {words}" not in page] == []
    options = {
        word
        for parser in LEAVES.values()
        for action in actions(parser)
        for word in action.option_strings
    }
    assert [word for word in options if f"\\fB{word}\\fR" not in page] == []
    assert [name for setting in SETTINGS for name in setting.variables if name not in page] == []
    for command in COMMANDS.values():
        for status, text in command.load().statuses.items():
            assert f".TP\n{status}\n{text[:1].upper()}{text[1:]}.\n" in page


def test_the_page_about_the_command_names_all_it_can_do() -> None:
    page = (Path(__file__).parents[3] / "docs" / "ftstanctl.md").read_text("utf-8")
    assert [name for name in COMMANDS if f"`ftstanctl {name}" not in page] == []


def test_the_version_is_json_to_whoever_asks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version", "--output", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "version": __version__,
        "compatible_version": COMPATIBLE_VERSION,
    }


#: What nobody but the operator has said: words of the command line and of the configuration; and a
#: question.
OWN_WORDS = {
    "cli/versions.py": 1,
    "cli/complaints.py": 3,
    "cli/serving.py": 1,
    "cli/check_config.py": 3,
    "cli/confirming.py": 1,
}


def test_commands_print_through_the_one_function_that_leaves_nothing_to_steer_a_terminal() -> None:
    package = Path(__file__).parents[3] / "ftstan"
    found = {}
    for path in (package / "cli").rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        calls = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        ]
        prints = sum(isinstance(call.func, ast.Name) and call.func.id == "print" for call in calls)
        if prints:
            found[path.relative_to(package).as_posix()] = prints
    assert found == OWN_WORDS


def test_a_name_that_a_client_chose_does_not_reach_the_terminal_as_it_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    say("host \x1b]0;owned\x07\x1b[2J\u202e\nhealthy", "next")
    complain(NatsError("no \x1b[31mserver", hint="see \udcff\x9b0m"), 1)
    out, err = capsys.readouterr()
    assert out == "host \\x1b]0;owned\\x07\\x1b[2J\\u202e\\nhealthy\nnext\n"
    assert err == "no \\x1b[31mserver\nhint: see \\udcff\\x9b0m\n"
