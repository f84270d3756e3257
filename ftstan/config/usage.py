"""The help text and the completion scripts of shells, made from the table of options.

A script is sourced, or put where the shell looks (``docs/configuration.md``).
"""

from __future__ import annotations

from ftstan.base.errors import ConfigError
from ftstan.config.declaration import Group, Option, ValueKind
from ftstan.config.table import FLAGS
from ftstan.config.units import format_duration

PROGRAMS = ("ftstan", "nats-streaming-server")
_DESCRIPTION_COLUMN = 50


def help_text() -> str:
    """Return the help text: an empty line, usage, titled groups, an empty line at the end."""
    lines = ["", "Usage: nats-streaming-server [options]", ""]
    for group in Group:
        listed = [_help_line(flag) for flag in FLAGS if flag.group is group and flag.help]
        if listed:
            lines += [f"{group.value}:", *listed, ""]
    return "\n".join(lines) + "\n"


def _help_line(flag: Option) -> str:
    form = f"--{flag.key}"
    if flag.kind is not ValueKind.BOOL:
        form += f" {flag.kind.value}"
    elif flag.default is True:
        form += f"={flag.kind.value}"
    short = f"-{flag.short}," if flag.short else ""
    notes = "" if flag.supported else " [not supported yet]"
    begin = f"    {short:<6}{form}".ljust(_DESCRIPTION_COLUMN - 1)
    return f"{begin} {flag.help}{_default(flag)}{notes}"


def _default(flag: Option) -> str:
    """The default where it says something that the description does not."""
    if flag.default is True:
        return " (default: true)"
    if flag.default in ("", 0):
        return ""
    value = format_duration(int(flag.default)) if flag.kind is ValueKind.DURATION else flag.default
    return f" (default: {value})"


def completion(shell: str) -> str:
    """The script of ``bash``, ``zsh`` or ``fish``. Raises ``ConfigError`` for another shell."""
    scripts = {"bash": _bash, "zsh": _zsh, "fish": _fish}
    if shell not in scripts:
        text = f"no completion for the shell {shell}"
        raise ConfigError(text, hint="there is one for bash, zsh and fish")
    return scripts[shell]()


def _dashed(name: str) -> str:
    return f"--{name}" if len(name) > 1 else f"-{name}"


def _bash() -> str:
    names = " ".join(_dashed(name) for flag in FLAGS for name in flag.flags)
    cases = []
    for flag in FLAGS:
        pattern = "|".join(f"-{name}|--{name}" for name in flag.flags)
        if flag.kind is not ValueKind.BOOL:
            offered = _offered(flag, f'-W "{" ".join(flag.choices)}"', "-d", "-f", "")
            words = f'$(compgen {offered} -- "$word")' if offered else ""
            cases.append(f"    {pattern}) COMPREPLY=({words}) ;;")
    return "\n".join(
        [
            "_ftstan() {",
            '  local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}"',
            '  case "$before" in',
            *cases,
            f'    *) COMPREPLY=($(compgen -W "{names}" -- "$word")) ;;',
            "  esac",
            "}",
            f"complete -F _ftstan {' '.join(PROGRAMS)}",
            "",
        ]
    )


def _zsh() -> str:
    lines = [f"#compdef {' '.join(PROGRAMS)}", "_arguments \\"]
    for flag in FLAGS:
        text = _described(flag).replace("[", "(").replace("]", ")").replace(":", " ")
        choices = f":value:({' '.join(flag.choices)})"
        value = _offered(flag, choices, ":directory:_files -/", ":file:_files", ":value:")
        lines += [f"  '{_dashed(name)}[{text}]{value}' \\" for name in flag.flags]
    return "\n".join([*lines, "  '*::'", ""])


def _fish() -> str:
    lines = []
    for program in PROGRAMS:
        for flag in FLAGS:
            names = "".join(f" -{'l' if len(name) > 1 else 's'} {name}" for name in flag.flags)
            directories = " -x -a '(__fish_complete_directories)'"
            value = _offered(flag, f" -x -a '{' '.join(flag.choices)}'", directories, " -r", " -x")
            lines.append(f"complete -c {program}{names}{value} -d '{_described(flag)}'")
    return "\n".join([*lines, ""])


def _described(flag: Option) -> str:
    return (flag.help or "no description").replace("'", "")


def _offered(flag: Option, choices: str, directory: str, file: str, other: str) -> str:
    """What a script says about the value of a flag; nothing for a boolean."""
    if flag.kind is ValueKind.BOOL:
        return ""
    if flag.choices:
        return choices
    return {"directory": directory, "file": file}.get(flag.takes, other)
