"""What keeps a drill from being carried out; a broken promise is no error but a verdict."""

from __future__ import annotations

from ftstan.base.errors import ConfigError, FtstanError


class DrillError(FtstanError):
    """The drill cannot go on: nothing was proved either way."""


class ScenarioError(ConfigError):
    """A scenario that cannot be played; the text begins with file, line and column."""
