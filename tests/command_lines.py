"""The options that a command line makes, without what a start checks of them afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftstan.config.flags import to_settings
from ftstan.config.validation import check_modes, refuse_empty_token, refuse_unsupported

if TYPE_CHECKING:
    from ftstan.config.flags import CommandLine
    from ftstan.config.options import ServerOptions


def to_options(line: CommandLine) -> ServerOptions:
    settings = to_settings(line)
    check_modes(settings)
    refuse_unsupported(settings)
    refuse_empty_token(settings)
    return settings.options()
