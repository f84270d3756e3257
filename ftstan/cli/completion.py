"""``ftstanctl completion``: what a shell needs to complete words of ``ftstanctl``, made from the
parsers themselves.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

SHELLS = ("bash", "zsh", "fish")

#: The program that is asked for names, at the moment when a shell completes them.
_ASKED = "ftstanctl"
#: The values of options, and the command whose ``ls`` has them.
_VALUES = {"--context": "context", "--channel": "channel", "--client": "client", "--to": "server"}
#: The words that commands take.
_NAMES = {
    "/pub": "channel",
    "/sub": "channel",
    "/channel/info": "channel",
    "/channel/delete": "channel",
    "/channel/purge": "channel",
    "/client/info": "client",
    "/client/kick": "client",
    "/server/info": "server",
    "/server/reload": "server",
    "/server/drain": "server",
    "/ft/pause": "server",
    "/ft/resume": "server",
    "/context/select": "context",
    "/context/rm": "context",
}

_BASH = """\
_{program}() {{
    local word path='' words=''
    for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        case "$path/$word" in
{steps}
        esac
    done
    case "$path" in
{words}
    esac
    case "${{COMP_WORDS[COMP_CWORD-1]}}:$path" in
{values}
        *) case "${{COMP_WORDS[COMP_CWORD]}}:$path" in
            -*) ;;
{names}
        esac ;;
    esac
    COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o default -F _{program} {program}
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the words."""
    parser.add_argument("shell", choices=SHELLS)


def script(shell: str, parser: argparse.ArgumentParser) -> str:
    """The text that ``shell`` shall read.

    Words of a path are offered once its commands stand on the line.
    """
    paths = dict(_paths("", parser))
    if shell == "fish":
        return "".join(
            _fish(parser.prog, path, options, commands)
            for path, (options, commands) in paths.items()
        ) + (_fish_names() if parser.prog == _ASKED else "")
    steps = "\n".join(f"            '{path}') path='{path}' ;;" for path in paths if path)
    words = "\n".join(
        f"        '{path}') words='{' '.join([*commands, *options])}' ;;"
        for path, (options, commands) in paths.items()
    )
    known = parser.prog == _ASKED
    values = "\n".join(
        f"        {option}:*) words=$({_asked(what)}) ;;"
        for option, what in _VALUES.items()
        if known
    )
    names = "\n".join(
        f'            *:{path}) words+=" $({_asked(what)})" ;;'
        for path, what in _NAMES.items()
        if known
    )
    text = _BASH.format(program=parser.prog, steps=steps, words=words, values=values, names=names)
    # zsh runs completions that were written for bash.
    return f"autoload -U +X bashcompinit && bashcompinit\n{text}" if shell == "zsh" else text


def _paths(
    path: str, parser: argparse.ArgumentParser
) -> Iterator[tuple[str, tuple[list[str], dict[str, str]]]]:
    """Every path of commands, with its options, and its commands with what they say of
    themselves.
    """
    actions = parser._actions  # noqa: SLF001  # there is no other way to ask
    options = [
        word for action in actions for word in action.option_strings if word.startswith("--")
    ]
    commands: dict[str, str] = {}
    below: list[tuple[str, argparse.ArgumentParser]] = []
    for action in actions:
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001  # as above
            commands |= {shown.dest: shown.help or "" for shown in action._choices_actions}  # noqa: SLF001  # as above
            below += action.choices.items()
    yield path, (options, commands)
    for name, child in below:
        yield from _paths(f"{path}/{name}", child)


def _fish(program: str, path: str, options: list[str], commands: dict[str, str]) -> str:
    seen = [f"__fish_seen_subcommand_from {name}" for name in path.split("/")[1:]]
    unseen = f"not __fish_seen_subcommand_from {' '.join(commands)}" if commands else ""
    where = "; and ".join([*seen, *([unseen] if unseen else [])]) or "true"
    lines = [
        f"complete -c {program} -f -n '{where}' -a {name} -d '{_quoted(text)}'"
        for name, text in commands.items()
    ]
    lines += [
        f"complete -c {program} -n '{where}' -l {option.removeprefix('--')}" for option in options
    ]
    return "".join(f"{line}\n" for line in lines)


def _asked(what: str) -> str:
    """What prints the names. Only harmless ones: a shell expands the words that it is offered."""
    return f"{_ASKED} {what} ls --output names 2>/dev/null | grep -xE '[A-Za-z0-9_.-]+'"


def _fish_names() -> str:
    lines = []
    for path, what in _NAMES.items():
        where = "; and ".join(f"__fish_seen_subcommand_from {name}" for name in path.split("/")[1:])
        lines.append(f"complete -c {_ASKED} -f -n '{where}' -a \"({_asked(what)})\"")
    lines += [
        f'complete -c {_ASKED} -l {option.removeprefix("--")} -x -a "({_asked(what)})"'
        for option, what in _VALUES.items()
    ]
    return "".join(f"{line}\n" for line in lines)


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")
