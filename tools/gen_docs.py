"""Writes every page that is made: the configuration reference, manual pages, README's overview,
``docs/coverage.md``, the codes on ``docs/troubleshooting.md``, the picture of the architecture.

Run it after a change of ``ftstan/config/options.py``, ``table.py``, ``ftstan/base/codes``, a word
of ``ftstanctl`` or ``docs/capabilities.toml``; a test compares its output with what is there.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from ftstan.config.declaration import Group, Option, Section, ValueKind
from ftstan.config.effective import shown
from ftstan.config.streamfile import CHANNELS
from ftstan.config.table import CONFIGURED, FLAGS, RETIRED
from tools import (
    architecture_picture,
    capabilities,
    codes_page,
    man_archive_slice,
    man_ftstanctl,
    man_pipeline,
)
from tools.roff import head, roff

if TYPE_CHECKING:
    from collections.abc import Mapping

_TABLE = "the table of options"

ROOT = Path(__file__).resolve().parents[1]

#: What one writes in a file for each kind.
FILE_FORM = {
    ValueKind.STRING: "text",
    ValueKind.INT: "integer",
    ValueKind.SIZE: "size",
    ValueKind.DURATION: "duration",
    ValueKind.BOOL: "boolean",
    ValueKind.LIST: "list",
    ValueKind.FLOAT: "seconds",
    ValueKind.MAP: "map",
}

INTRODUCTION = """\
# Configuration reference

<!-- Made by tools/gen_docs.py from the table of options; do not edit. -->

Every option has a place in a file, a flag, or both. The defaults hold first, then the file, then the flags that were
given. `ftstan -c <file> -check_config` shows what comes out and where each value came from, and starts nothing; with
`-strict` it fails on all that a start would suffer from, and with `-unit ftstan.service` it has that unit's flags and variables. `ftstan -c <file> -dump_config` prints it all as one file.

## Files

`-c` names a file for both halves, the streaming server and the NATS server that it starts; `-sc` one for the streaming
half alone (without `-c`, the NATS half reads it too). The streaming half's keys stand in a map `streaming { }`; a file
without such a map has them at top level. The language is that of NATS servers (`docs/compat/config.md`, Grammar); a
file whose name ends in `.yaml` or `.yml` says the same in YAML.

```
listen: 127.0.0.1:4222
http: 8222

streaming {
  cluster_id: orders
  store: file
  dir: /var/lib/ftstan
  ft_group: orders
  store_limits {
    max_msgs: 100k
    channels {
      "audit.>" { max_age: "720h" }
    }
  }
}
```

| kind | written in a file | on the command line |
|---|---|---|
| text | `abc` or `"a b"` | `-flag "a b"` |
| integer, size | `1000`, `10k` (10,000), `64KB` (65,536), no quotes | `-flag 64KB` |
| duration | `"30s"`, `"1h30m"`; quotes, since `1m` is a million | `-flag 1h30m` |
| boolean | `true`, `false`, `yes`, `no`, `on`, `off` | `-flag`, `-flag=false` |
| list | `["a", "b"]` | `-flag a,b` |
| seconds | `2`, `0.5` | |
| map | `{ ... }`, handed to the NATS server as it is | |

Names are matched without case. A key that nobody knows is a warning in the log, with the nearest name that is one.

## Shell completion and manual pages

`ftstan -completion bash > /etc/bash_completion.d/ftstan` (zsh: a file `_ftstan` in a directory of `$fpath`; fish:
`~/.config/fish/completions/ftstan.fish`). The manual pages `ftstan(8)` and `ftstan.conf(5)` are in `docs/man`.
"""  # noqa: E501

TITLES = {
    Section.STREAMING: "Streaming server: `streaming { }` or top level",
    Section.LIMITS: "Store limits: `store_limits { }`",
    Section.FILE: "File store: `file_options { }`",
    Section.TLS: "TLS to the NATS server: `tls { }` inside `streaming { }`",
    Section.NATS: "NATS server, log, monitoring: top level",
    Section.AUTHORIZATION: "Who may connect: `authorization { }`",
    Section.NATS_TLS: "TLS of clients: `tls { }` at top level",
    Section.ROUTES: "Routes: `cluster { }` at top level",
    Section.SQL: "SQL store: `sql_options { }`",
    Section.CLUSTER: "Replication: `cluster { }` inside `streaming { }`",
}


@cache
def pages() -> Mapping[str, str]:
    """Text of every page by its path below the repository; made once in a process."""
    return {
        "docs/configuration.md": configuration(),
        "docs/man/ftstan.8": manual_of_the_command(),
        "docs/man/ftstan.conf.5": manual_of_the_file(),
        "docs/man/ftstanctl.8": man_ftstanctl.manual(),
        "docs/man/ftstan-pipeline.1": man_pipeline.manual(),
        "docs/man/ftstan-archive-slice.1": man_archive_slice.manual(),
        architecture_picture.TARGET: architecture_picture.picture(),
        **capabilities.pages(),
        **codes_page.pages(),
    }


def default_of(option: Option) -> str:
    """The default as people write it; empty where there is nothing to say."""
    if option.default in ("", 0, False) or option.kind is ValueKind.MAP:
        return ""
    return shown(option, option.default).strip('"') if option.section else str(option.default)


def configuration() -> str:
    """The configuration reference."""
    parts = [INTRODUCTION]
    for section, title in TITLES.items():
        parts.append(f"## {title}\n")
        if section is Section.LIMITS:
            parts.append(
                "Limits of single channels stand in a map `channels { }` (also "
                + ", ".join(f"`{name}`" for name in CHANNELS[1:])
                + '): `"foo.>" { max_msgs: 10 }`. There 0 is unlimited, and what is not said is '
                "inherited. An entry may also have `dead_letter: { max_deliveries: 5, channel: "
                '"orders.dead" }` and `redelivery: ["1s", "10s", "1m"]`, which a reload takes '
                "over: [dead-letters.md](dead-letters.md).\n"
            )
        parts.append("| key | also | kind | default | flag | |\n|---|---|---|---|---|---|")
        parts += [
            _row(option) for option in CONFIGURED if option.section is section and option.names
        ]
        if section is Section.ROUTES:
            parts.append(
                "| `listen` | `host`, `net`, `port` | address | | `-cluster` | Where routes "
                "connect |"
            )
            parts.append(
                "| `authorization` | | map | | `-cluster` | Login of routes: `user`, `password`, "
                "`timeout` |"
            )
        if section is Section.NATS:
            parts.append(
                "| `listen` | | address | | `-a`, `-p` | Host and port of clients in one |"
            )
            parts.append(
                "| `http`, `https` | | address | | `-m`, `-ms` | Host and port of the monitoring "
                "pages in one |"
            )
        parts.append("")
    parts.append("## Only on the command line\n\n| flag | kind | default | |\n|---|---|---|---|")
    for flag in FLAGS:
        if not flag.names:
            parts.append(
                f"| {_flags(flag)} | {FILE_FORM[flag.kind]} | {default_of(flag)} | {_text(flag)} |"
            )
    parts.append("\n## Keys of old releases\n\nTaken with a warning; they have no effect.\n")
    parts += [f"- `{name}`: {why}." for names in RETIRED.values() for name, why in names.items()]
    return "\n".join(parts) + "\n"


def _row(option: Option) -> str:
    first, *others = (f"`{name}`" for name in option.names)
    cells = (first, ", ".join(others), FILE_FORM[option.kind], default_of(option), _flags(option))
    return f"| {' | '.join(cells)} | {_text(option)} |"


def _flags(option: Option) -> str:
    return ", ".join(f"`-{name}`" for name in option.flags)


def _text(option: Option) -> str:
    text = (option.help or option.note).replace("|", "\\|")
    return text if option.supported else f"{text} *(not supported yet)*"


# ---- manual pages
# ------------------------------------------------------------------------------------------------


def manual_of_the_command() -> str:
    """``ftstan(8)``."""
    lines = [
        *head("FTSTAN", 8, "NATS Streaming server whose fault-tolerant pairs lose nothing", _TABLE),
        ".SH SYNOPSIS",
        ".B ftstan",
        "[\\fIoptions\\fR]",
        ".SH DESCRIPTION",
        (
            "Serves the NATS Streaming protocol. Without options: a memory store, and a NATS "
            "server "
            "on port 4222."
        ),
        "One or two dashes are equal. Booleans take a value only with an equals sign.",
        "A malformed command line prints the help and exits with status 0, as the original does.",
    ]
    for group in Group:
        flags = [flag for flag in FLAGS if flag.group is group]
        if not flags:
            continue
        lines.append(f".SH {group.value.upper()}")
        for flag in flags:
            names = ", ".join(f"\\fB\\-{roff(name)}\\fR" for name in flag.flags)
            value = (
                ""
                if flag.kind is ValueKind.BOOL
                else f" \\fI{roff(flag.kind.value.strip('<>'))}\\fR"
            )
            default = f" Default: {default_of(flag)}." if default_of(flag) else ""
            lines += [".TP", names + value, roff(f"{_text(flag)}.{default}")]
    lines += [
        ".SH EXIT STATUS",
        *(
            ".TP",
            "0",
            roff("Stopped by SIGINT; help, version, malformed command line, signal sent."),
        ),
        *(".TP", "1", roff("The options or the start failed.")),
        *(
            ".TP",
            "75",
            roff(
                "The store belongs to another server, or cannot be written: start it again as a "
                "standby."
            ),
        ),
        *(".TP", "143", roff("Stopped by SIGTERM.")),
        ".SH EXAMPLES",
        *man_ftstanctl.examples(
            (
                "ftstan -store file -dir /nss/orders -m 8222",
                "ftstan -c /etc/ftstan/ftstan.conf -check_config",
            )
        )[2:],
        ".SH SEE ALSO",
        ".BR ftstan.conf (5),",
        ".BR ftstanctl (8)",
    ]
    return "\n".join(lines) + "\n"


def manual_of_the_file() -> str:
    """``ftstan.conf(5)``."""
    lines = [
        *head("FTSTAN.CONF", 5, "configuration file of ftstan", _TABLE),
        ".SH DESCRIPTION",
        roff(
            "The language is that of NATS servers: keys and values, maps in braces, arrays in "
            "brackets, comments"
        ),
        roff("with # or //, variables with $, and include. Names are matched without case."),
        roff("ftstan -c FILE -check_config shows what a file says and starts nothing."),
    ]
    for section, title in TITLES.items():
        lines.append(f".SH {roff(title.replace('`', '')).upper()}")
        for option in CONFIGURED:
            if option.section is not section or not option.names:
                continue
            names = ", ".join(f"\\fB{roff(name)}\\fR" for name in option.names)
            default = f" Default: {default_of(option)}." if default_of(option) else ""
            lines += [
                ".TP",
                f"{names} \\fI{FILE_FORM[option.kind]}\\fR",
                roff(f"{_text(option)}.{default}"),
            ]
    return "\n".join([*lines, ".SH SEE ALSO", ".BR ftstan (8)"]) + "\n"


def main() -> None:
    """Write every page."""
    assert set(Section) == set(TITLES)
    for path, text in pages().items():
        (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / path).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
