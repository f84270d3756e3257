"""``-check_config`` and ``-dump_config``: what a start would do, and nothing of it done.

Everything that a start checks before it touches anything is checked here too, and ``nats-server``
is asked about its part.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from ftstan.base.errors import ConfigError, FtstanError
from ftstan.cli.complaints import complain
from ftstan.config.encryption_keys import check_encryption
from ftstan.config.options import STORE_SQL
from ftstan.config.precedence import DEFAULT
from ftstan.config.table import CONFIGURED, SETTINGS
from ftstan.config.validation import (
    check_before_logging,
    check_modes,
    check_start,
    refuse_empty_token,
    refuse_unsupported,
    warnings_of,
)
from ftstan.nats.generated import child_options
from ftstan.nats.routes import check_routes
from ftstan.nats.url import parse_urls
from ftstan.stores import registry

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ftstan.config.options import ServerOptions
    from ftstan.config.precedence import Settings
    from ftstan.config.service_unit import ServiceUnit


def check_command_line(settings: Settings) -> ServerOptions:
    """Make the options that a start would have. Raises ``ConfigError``, before a log exists.

    Values that nobody can want become warnings.
    """
    check_modes(settings)
    refuse_unsupported(settings)
    refuse_empty_token(settings)
    options = settings.options()
    check_before_logging(options)
    if options.nats.tls.enabled and not options.nats_servers:
        _check_server_tls(settings, options)
    try:
        settings.warnings += [*warnings_of(options), *check_routes(options)]
    except ConfigError as error:
        raise placed(error, settings) from error
    return options


def placed(error: FtstanError, settings: Settings) -> FtstanError:
    """``error`` with the place in a file where the option at fault was said, if that is where it
    was, in its hint.
    """
    if not error.option:
        return error
    for option in CONFIGURED:
        if option.key == error.option or option.field.startswith(SETTINGS + error.option):
            setting = settings.get(option.key)
            if setting.source != DEFAULT and not setting.source.startswith("-"):
                error.hint = f"{setting.source}: {setting.spelled or option.key}: {error.hint}"
                break
    return error


def show(settings: Settings, service: ServiceUnit, *, strict: bool) -> None:
    """Print the effective configuration and warnings.

    Raises ``FtstanError`` for what would refuse a start.

    ``service`` is what will start it. ``strict``: what a start would take and surely
    suffer from does so too. All of it is told.
    """
    # Late, as below: every start imports this module.
    from ftstan.config.effective import effective_lines  # noqa: PLC0415

    options = _checked(settings, service.environment)
    print("\n".join(effective_lines(settings, options)))
    found: list[FtstanError] = []
    if strict:
        from ftstan.cli.strict import problems, service_problems  # noqa: PLC0415

        found = [
            placed(problem, settings)
            for problem in (
                *problems(settings, options, service.directories),
                *service_problems(options, service),
            )
        ]
    told = {problem.text for problem in found}
    for warning in settings.warnings:
        if warning not in told:
            print(f"warning: {warning}", file=sys.stderr)
    for problem in found[:-1]:
        complain(problem)
    if found:
        raise found[-1]
    print("\nThe configuration is valid.")


def show_dump(settings: Settings) -> None:
    """Print a file that loads back to the same options.

    Raises ``FtstanError`` for what would refuse a start.
    """
    from ftstan.config.effective import dump  # noqa: PLC0415

    sys.stdout.write(dump(_checked(settings, os.environ)))


def check_files(options: ServerOptions) -> None:
    """Read what logins and TLS name, so that nothing is touched before.

    Raises ``NatsError`` and ``ConfigError``.
    """
    # Late: this brings in TLS, and a wrong flag should not wait for it.
    from ftstan.nats.material import check_material  # noqa: PLC0415

    check_material(options)
    if options.monitor.https_port:
        # Late: few servers have such pages, and an HTTP server is large.
        from ftstan.monitor.http import pages_context  # noqa: PLC0415

        pages_context(options.monitor, options.nats.tls)


def check_database(options: ServerOptions) -> None:
    """Refuse a source that no database can have, before anything is started.

    Raises ``ConfigError``.
    """
    if options.store == STORE_SQL:
        from ftstan.stores.sql.source import source_of  # noqa: PLC0415  # few servers have one

        source_of(options.sql)


def _check_server_tls(settings: Settings, options: ServerOptions) -> None:
    """Of the listener for clients: like other mistakes of a file it is told with its place, and
    before a log exists.
    """
    from ftstan.nats.servertls import check_tls  # noqa: PLC0415  # late: it brings in TLS

    try:
        check_tls(options.nats.tls)
    except ConfigError as error:
        place = settings.get("tls").source
        if place == DEFAULT or place.startswith("-"):
            raise
        raise ConfigError(f"{place}: {error.text}", hint=error.hint) from error


def _checked(settings: Settings, environment: Mapping[str, str]) -> ServerOptions:
    options = check_command_line(settings)
    try:
        check_encryption(options.encryption, environment)
        check_start(options, registry.names(options.store))
        if options.ft_group:
            from ftstan.ft.timing import timing_of  # noqa: PLC0415  # late: a start makes its own

            timing_of(options.ft, is_network=False)
        check_files(options)
        check_database(options)
        if options.nats_servers:
            parse_urls(",".join(options.nats_servers))
        else:
            from ftstan.nats.config_check import check  # noqa: PLC0415

            # Without the directories of a node: nothing is made here.
            check(child_options(replace(options, clustered=False)))
    except FtstanError as error:
        raise placed(error, settings) from error
    return options
