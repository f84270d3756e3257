"""Completion scripts of shells, made from the table of options.

Each is a text to be sourced or put where the shell looks; ``docs/configuration.md`` says where.
"""

from __future__ import annotations

from ftstan.config.options import FT_ALLOW, FT_MIXED
from ftstan.config.table import FLAGS, Kind, Option
from ftstan.errors import ConfigError

PROGRAMS = ("ftstan", "nats-streaming-server")

#: Values that are one of a few words.
CHOICES: dict[str, tuple[str, ...]] = {
    "store": ("memory", "file"),
    "signal": ("stop", "quit", "term", "reopen", "reload", "ldm"),
    "ft_mixed": FT_MIXED,
    "ft_allow": FT_ALLOW,
    "log_format": ("text", "json"),
    "completion": ("bash", "zsh", "fish"),
}
_FILES = ("config", "stan_config", "log", "pid", "file_slice_archive_script", "monitor_client_ca")
_DIRECTORIES = ("dir", "ports_file_dir", "store_dir", "cluster_log_path")


def completion(shell: str) -> str:
    """The script of ``bash``, ``zsh`` or ``fish``. Raises ``ConfigError`` for another shell."""
    if shell not in CHOICES["completion"]:
        raise ConfigError(f"no completion for the shell {shell}", hint="there is one for bash, zsh and fish")
    return {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell]()


def takes_file(option: Option) -> bool:
    """Whether the value is the path of a file."""
    return option.key in _FILES or (option.key.startswith("tls") and option.kind is Kind.STRING)


def _bash() -> str:
    words = " ".join(f"--{name}" if len(name) > 1 else f"-{name}" for flag in FLAGS for name in flag.names)
    cases = []
    for flag in FLAGS:
        pattern = "|".join(f"-{name}|--{name}" for name in flag.names)
        if flag.key in CHOICES:
            cases.append(f'    {pattern}) COMPREPLY=($(compgen -W "{" ".join(CHOICES[flag.key])}" -- "$word")) ;;')
        elif flag.key in _DIRECTORIES:
            cases.append(f'    {pattern}) COMPREPLY=($(compgen -d -- "$word")) ;;')
        elif takes_file(flag):
            cases.append(f'    {pattern}) COMPREPLY=($(compgen -f -- "$word")) ;;')
        elif flag.kind is not Kind.BOOL:
            cases.append(f"    {pattern}) COMPREPLY=() ;;")
    return "\n".join(
        [
            "_ftstan() {",
            '  local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}"',
            '  case "$before" in',
            *cases,
            f'    *) COMPREPLY=($(compgen -W "{words}" -- "$word")) ;;',
            "  esac",
            "}",
            f"complete -F _ftstan {' '.join(PROGRAMS)}",
            "",
        ]
    )


def _zsh() -> str:
    lines = [f"#compdef {' '.join(PROGRAMS)}", "_arguments \\"]
    for flag in FLAGS:
        text = (flag.help or "no description").replace("'", "").replace("[", "(").replace("]", ")").replace(":", " ")
        for name in flag.names:
            dashes = "--" if len(name) > 1 else "-"
            lines.append(f"  '{dashes}{name}[{text}]{_zsh_value(flag)}' \\")
    lines.append("  '*::'")
    return "\n".join([*lines, ""])


def _zsh_value(flag: Option) -> str:
    if flag.kind is Kind.BOOL:
        return ""
    if flag.key in CHOICES:
        return f":value:({' '.join(CHOICES[flag.key])})"
    if flag.key in _DIRECTORIES:
        return ":directory:_files -/"
    return ":file:_files" if takes_file(flag) else ":value:"


def _fish() -> str:
    lines = []
    for program in PROGRAMS:
        for flag in FLAGS:
            names = "".join(f" -l {name}" if len(name) > 1 else f" -s {name}" for name in flag.names)
            text = (flag.help or "no description").replace("'", "")
            lines.append(f"complete -c {program}{names}{_fish_value(flag)} -d '{text}'")
    return "\n".join([*lines, ""])


def _fish_value(flag: Option) -> str:
    if flag.kind is Kind.BOOL:
        return ""
    if flag.key in CHOICES:
        return f" -x -a '{' '.join(CHOICES[flag.key])}'"
    if flag.key in _DIRECTORIES:
        return " -x -a '(__fish_complete_directories)'"
    return " -r" if takes_file(flag) else " -x"
