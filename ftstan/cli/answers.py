"""The command line of ``ftstan``: what needs no server is answered here, a start is
``ftstan.cli.serving``'s.

Everything that can go wrong ends as one line and its hint, never as a traceback. What an answer
does not need is loaded where it is needed.

Source: ``docs/compat/config.md`` (help, version, exit status).
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from ftstan.base.errors import ConfigError, FtstanError
from ftstan.cli.complaints import EXIT_OK, complain, refuse
from ftstan.config.flags import CommandLine, FlagSyntaxError, parse, to_settings
from ftstan.config.units import quote

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ftstan.config.service_unit import ServiceUnit


def carry_out(words: Sequence[str], *, is_command: bool) -> int:
    """Do what ``words`` say; returns the exit status.

    ``is_command``: they are those of this process.
    """
    try:
        line = parse(words)
    except FlagSyntaxError as error:
        # Status 0 and the help text: so does the original, and scripts may depend on either.
        complain(error)
        _show_help()
        return EXIT_OK
    try:
        if _answer(line, words):
            sys.stdout.flush()
            return EXIT_OK
    except FtstanError as error:
        return refuse(error)
    except BrokenPipeError:
        from ftstan.cli.pipes import reader_left  # noqa: PLC0415

        reader_left()
        return EXIT_OK
    from ftstan.cli.serving import serve  # noqa: PLC0415

    return serve(line, words, os.environ, is_command=is_command)


def _answer(line: CommandLine, words: Sequence[str]) -> bool:
    """Answer a question or carry out a command that needs no server; false when there is none."""
    first = line.leftover[0].lower() if line.leftover else ""
    if line.is_on("version") or first == "version":
        from ftstan.cli.versions import say_version  # noqa: PLC0415

        say_version()
        return True
    if line.is_on("help") or first == "help":
        _show_help()
        return True
    if line.is_on("help_tls"):
        from ftstan.config.tlsfile import tls_help  # noqa: PLC0415

        sys.stdout.write(tls_help())
        return True
    if line.text("completion"):
        from ftstan.config.usage import completion  # noqa: PLC0415

        sys.stdout.write(completion(line.text("completion")))
        return True
    if line.leftover:
        raise ConfigError(
            f"unrecognized command: {quote(line.leftover[0])}",
            hint="flags begin with a dash; see -help",
        )
    if line.text("signal"):
        from ftstan.cli import signals  # noqa: PLC0415

        signals.send(line.text("signal"))
        return True
    if line.is_on("check_config"):
        from ftstan.cli import check_config  # noqa: PLC0415

        service = _service(line.text("unit"))
        line = parse([*service.words, *words])
        settings = to_settings(line, service.environment)
        check_config.show(settings, service, strict=line.is_on("strict"))
        return True
    if line.is_on("dump_config"):
        from ftstan.cli import check_config  # noqa: PLC0415

        check_config.show_dump(to_settings(line))
        return True
    return False


def _service(unit: str) -> ServiceUnit:
    """The service that ``-unit`` names, or this process. Raises ``ConfigError``."""
    from ftstan.config.service_unit import ServiceUnit, read_unit  # noqa: PLC0415

    found = read_unit(unit) if unit else ServiceUnit(os.environ)
    if found is None:
        raise ConfigError(
            f"there is no unit {unit}",
            hint="-unit ftstan.service, or ftstan@orders.service; or give -c without -unit",
        )
    return found


def _show_help() -> None:
    from ftstan.config.usage import help_text  # noqa: PLC0415

    sys.stdout.write(help_text())
