"""Being a server: read files and flags, check them, set up the log, run one node.

The order is that of a quick start (``docs/performance.md``): the NATS server is started as soon as
nothing is left that could refuse the start, and the rest of this program is loaded behind that.

Source: ``docs/compat/config.md`` (exit status).
"""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from ftstan.base import log
from ftstan.base.errors import ConfigError, FtstanError
from ftstan.cli import check_config
from ftstan.cli.complaints import EXIT_ERROR, complain, refuse
from ftstan.cli.hidden import blank_secrets
from ftstan.config.banner import starting_lines
from ftstan.config.encryption_keys import check_encryption
from ftstan.config.flags import CommandLine, parse, to_settings
from ftstan.config.validation import check_start
from ftstan.nats.addresses import check_addresses
from ftstan.nats.url import parse_urls
from ftstan.node.runtime import ProcessHost
from ftstan.node.starts import Starts
from ftstan.stores import registry
from ftstan.wire.nuid import Nuid

if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping, Sequence

    from ftstan.config.options import ServerOptions
    from ftstan.config.precedence import Settings


EXIT_BUG = 2
EXIT_TERM = 128 + signal.SIGTERM
EXIT_INTERRUPTED = 130

#: Lines of the embedded NATS server's half, which stand in the log without ``STREAM: Failed to
#: start: ``.
_NATS_TEXTS = ("Error listening on port: ", "Can't start monitoring: ", "Could not write pidfile: ")


def serve(
    line: CommandLine,
    words: Sequence[str],
    environment: MutableMapping[str, str],
    *,
    is_command: bool,
) -> int:
    """Be the server that ``line`` asks for; returns the exit status.

    ``words`` are read again for a reload. ``is_command``: they are those of this process.
    """
    starts = Starts.of(environment)
    stopped = starts.begin(environment)
    if stopped is not None:
        return stopped
    if is_command:
        blank_secrets()
    status = _start(line, words, starts, is_command=is_command)
    starts.ended(status)
    return status


def _start(line: CommandLine, words: Sequence[str], starts: Starts, *, is_command: bool) -> int:
    """Be a server; returns the exit status."""
    try:
        settings, options = _read(line)
    except FtstanError as error:
        return refuse(error)
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
        complain(error, prefix=time.strftime("%Y/%m/%d %H:%M:%S "))
        return EXIT_ERROR
    for warning in settings.warnings:
        log.stream.warning(warning, code="FTS-1199")
    reread = partial(_reread, words) if line.text("config") or line.text("stan_config") else None
    return _serve(options, settings, reread, ProcessHost(starts, is_command=is_command))


def _read(line: CommandLine) -> tuple[Settings, ServerOptions]:
    """Read files and flags, and make the checks that need no log. Raises ``ConfigError``."""
    settings = to_settings(line)
    return settings, check_config.check_command_line(settings)


def _reread(words: Sequence[str]) -> ServerOptions:
    """The options as files and flags are now, for a reload. Raises ``ConfigError``."""
    settings, options = _read(parse(words))
    check_encryption(options.encryption, os.environ)
    check_start(options, registry.names(options.store))
    for warning in settings.warnings:
        log.stream.warning(warning, code="FTS-1199")
    return options


def _serve(
    options: ServerOptions,
    settings: Settings,
    reread: Callable[[], ServerOptions] | None,
    host: ProcessHost,
) -> int:
    try:
        _prepare(options, settings)
        # Late: what is wrong with a start should not wait for what it would have needed.
        from ftstan.node.early import Early  # noqa: PLC0415

        # The node has its own handlers, as soon as it runs: until then a stop must not leave behind
        # what the NATS server was given to read.
        signal.signal(signal.SIGTERM, _leave)
        with Early(options) as early:
            from ftstan.node.node import run  # noqa: PLC0415

            return run(options, reread, host, early)
    except FtstanError as error:
        if error.text.startswith(_NATS_TEXTS):
            log.nats.fatal(error.text)
        else:
            log.stream.fatal(f"Failed to start: {error}")
        if error.hint:
            # Not below what runbooks filter for: a refusal without its hint is half of it.
            log.stream.warning(f"Hint: {error.hint}")
        if options.log.remote_syslog or (options.log.syslog and not options.log.file):
            # Nobody sees a terminal there: the original says it on standard output, too.
            print(error.text)
        return EXIT_ERROR
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except Exception as error:  # noqa: BLE001  # a bug of ours: the operator gets a line and a place to report
        _report_bug(error)
        return EXIT_BUG


def _leave(number: int, frame: object) -> NoReturn:
    del number, frame
    raise SystemExit(EXIT_TERM)


def _prepare(options: ServerOptions, settings: Settings) -> None:
    """Make the last checks, those that are reported in the log, and write the pid file."""
    try:
        check_encryption(options.encryption, os.environ)
        check_start(options, registry.names(options.store))
        check_config.check_files(options)
        check_config.check_database(options)
        if options.nats_servers:
            parse_urls(",".join(options.nats_servers))
        else:
            check_addresses(options)
            if options.pid_file:  # in the original it is the embedded NATS server that writes it
                _write_pid_file(options.pid_file)
    except FtstanError as error:
        check_config.placed(error, settings)
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


def _report_bug(error: Exception) -> None:
    import traceback  # noqa: PLC0415

    frames = traceback.extract_tb(error.__traceback__)
    place = f"{os.path.basename(frames[-1].filename)}:{frames[-1].lineno}" if frames else "?"
    log.stream.fatal(f"Internal error: {type(error).__name__}: {error} ({place})")
    log.stream.warning("Hint: please report this line, with the lines that -SD shows before it")
    for text in traceback.format_exception(error):
        for row in text.splitlines():
            log.stream.debug(row)
