"""``ftstan``: read the command line, set up the log, run one node, and end with the exit status that operators know.

Everything that can go wrong ends as one line and its hint, never as a traceback. This module starts no thread, socket
or child itself; ``ftstan.node.node.run`` does.

Source: ``docs/compat/config.md`` (help, version, exit status).
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from functools import partial
from typing import TYPE_CHECKING

from ftstan.base import log
from ftstan.base.errors import ConfigError, FtstanError
from ftstan.cli import checking, signals
from ftstan.cli.hidden import blank_secrets
from ftstan.cli.pipes import reader_left
from ftstan.config.banner import starting_lines
from ftstan.config.flags import CommandLine, FlagSyntaxError, parse, to_settings
from ftstan.config.tlsfile import tls_help
from ftstan.config.units import quote
from ftstan.config.usage import completion, help_text
from ftstan.config.validation import ModeError, check_encryption, check_start
from ftstan.nats.addresses import check_addresses
from ftstan.nats.url import parse_urls
from ftstan.node.starts import Starts
from ftstan.stores import registry
from ftstan.version import COMPATIBLE_VERSION
from ftstan.wire.nuid import Nuid

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ftstan.config.options import ServerOptions
    from ftstan.config.settings import Settings


EXIT_OK = 0
EXIT_ERROR = 1
EXIT_BUG = 2
EXIT_INTERRUPTED = 130

#: Lines of the embedded NATS server's half, which stand in the log without ``STREAM: Failed to start: ``.
_NATS_TEXTS = ("Error listening on port: ", "Can't start monitoring: ", "Could not write pidfile: ")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with the words ``argv`` (default: those of the process) and return its exit status."""
    words = sys.argv[1:] if argv is None else argv
    try:
        line = parse(words)
    except FlagSyntaxError as error:
        # Status 0 and the help text: so does the original, and scripts may depend on either.
        _complain(error)
        sys.stdout.write(help_text())
        return EXIT_OK
    try:
        if _answer(line):
            sys.stdout.flush()
            return EXIT_OK
    except FtstanError as error:
        return _refuse(error)
    except BrokenPipeError:
        reader_left()
        return EXIT_OK
    starts = Starts.of(os.environ)
    stopped = starts.begin(os.environ)
    if stopped is not None:
        return stopped
    if argv is None:
        blank_secrets()
    status = _start(line, words, starts)
    starts.ended(status)
    return status


def _refuse(error: FtstanError) -> int:
    """Say what is wrong with the words or files, before there is a log."""
    if isinstance(error, ModeError):
        # The original writes this one to standard output.
        print(error)
        _hint(error)
    else:
        _complain(error)
    return EXIT_ERROR


def _start(line: CommandLine, words: Sequence[str], starts: Starts) -> int:
    """Be a server; returns the exit status."""
    try:
        settings, options = _read(line)
    except FtstanError as error:
        return _refuse(error)
    try:
        log.configure(
            file=options.log.file,
            size_limit=options.log.size_limit,
            syslog=options.log.syslog,
            remote_syslog=options.log.remote_syslog,
            syslog_name=options.log.syslog_name,
            json_lines=options.log.format == "json",
            debug=options.debug,
            trace=options.trace,
            nats_debug=options.nats.debug,
            nats_trace=options.nats.trace,
            logtime=options.log.time,
        )
    except ConfigError as error:
        _complain(error, prefix=time.strftime("%Y/%m/%d %H:%M:%S "))
        return EXIT_ERROR
    for warning in settings.warnings:
        log.stream.warning(warning)
    reread = partial(_reread, words) if line.text("config") or line.text("stan_config") else None
    return _serve(options, settings, reread, starts)


def _read(line: CommandLine) -> tuple[Settings, ServerOptions]:
    """Read files and flags, and make the checks that need no log. Raises ``ConfigError``."""
    settings = to_settings(line)
    return settings, checking.check_command_line(settings)


def _reread(words: Sequence[str]) -> ServerOptions:
    """The options as files and flags are now, for a reload. Raises ``ConfigError``."""
    settings, options = _read(parse(words))
    check_encryption(settings, os.environ)
    check_start(options, registry.names())
    for warning in settings.warnings:
        log.stream.warning(warning)
    return options


def _answer(line: CommandLine) -> bool:
    """Answer a question or carry out a command that needs no server; false when there is none."""
    first = line.leftover[0].lower() if line.leftover else ""
    if line.is_on("version") or first == "version":
        # Late: it runs nats-server once to ask.
        from ftstan.nats.embedded import binary_version  # noqa: PLC0415

        print(f"nats-streaming-server version {COMPATIBLE_VERSION}, nats-server: v{binary_version()}")
        return True
    if line.is_on("help") or first == "help":
        sys.stdout.write(help_text())
        return True
    if line.is_on("help_tls"):
        sys.stdout.write(tls_help())
        return True
    if line.text("completion"):
        sys.stdout.write(completion(line.text("completion")))
        return True
    if line.leftover:
        raise ConfigError(f"unrecognized command: {quote(line.leftover[0])}", hint="flags begin with a dash; see -help")
    if line.text("signal"):
        signals.send(line.text("signal"))
        return True
    if line.is_on("check_config"):
        checking.show(to_settings(line), strict=line.is_on("strict"))
        return True
    if line.is_on("dump_config"):
        checking.show_dump(to_settings(line))
        return True
    return False


def _serve(
    options: ServerOptions, settings: Settings, reread: Callable[[], ServerOptions] | None, starts: Starts
) -> int:
    try:
        _prepare(options, settings)
        # Late: a version or a wrong flag should not wait for the whole server to be loaded.
        from ftstan.node.node import run  # noqa: PLC0415
        from ftstan.node.runtime import ProcessHost  # noqa: PLC0415

        return run(options, reread, ProcessHost(starts))
    except FtstanError as error:
        if error.text.startswith(_NATS_TEXTS):
            log.nats.fatal(error.text)
        else:
            log.stream.fatal(f"Failed to start: {error}")
        if error.hint:
            log.stream.info(f"Hint: {error.hint}")
        if options.log.remote_syslog or (options.log.syslog and not options.log.file):
            # Nobody sees a terminal there: the original says it on standard output, too.
            print(error.text)
        return EXIT_ERROR
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except Exception as error:  # noqa: BLE001  # a bug of ours: the operator gets a line and a place to report
        _report_bug(error)
        return EXIT_BUG


def _prepare(options: ServerOptions, settings: Settings) -> None:
    """Make the last checks, those that are reported in the log, and write the pid file."""
    try:
        check_encryption(settings, os.environ)
        check_start(options, registry.names())
        checking.check_files(options)
        if options.nats_servers:
            parse_urls(",".join(options.nats_servers))
        else:
            check_addresses(options)
            if options.pid_file:  # in the original it is the embedded NATS server that writes it
                _write_pid_file(options.pid_file)
    except FtstanError as error:
        checking.placed(error, settings)
        # The log of a failed start begins like every other.
        for text in starting_lines(options.cluster_id, Nuid().next()):
            log.stream.info(text)
        raise


def _write_pid_file(path: str) -> None:
    """Decimal, no line feed."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o660)
        try:
            os.write(fd, str(os.getpid()).encode())
        finally:
            os.close(fd)
    except OSError as error:
        raise ConfigError(
            f"Could not write pidfile: open {path}: {log.errno_text(error)}",
            hint="give -P the name of a file in an existing directory that this user may write",
        ) from error


def _complain(error: FtstanError, prefix: str = "") -> None:
    print(f"{prefix}{error}", file=sys.stderr)
    _hint(error)


def _hint(error: FtstanError) -> None:
    if error.hint:
        print(f"hint: {error.hint}", file=sys.stderr)


def _report_bug(error: Exception) -> None:
    frames = traceback.extract_tb(error.__traceback__)
    place = f"{os.path.basename(frames[-1].filename)}:{frames[-1].lineno}" if frames else "?"
    log.stream.fatal(f"Internal error: {type(error).__name__}: {error} ({place})")
    log.stream.info("Hint: please report this line, with the lines that -SD shows before it")
    for text in traceback.format_exception(error):
        for row in text.splitlines():
            log.stream.debug(row)


if __name__ == "__main__":
    sys.exit(main())
