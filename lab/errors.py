"""What ends a stage: one line for whoever runs the lab, and what to do about it."""

from __future__ import annotations

from ftstan.base.errors import FtstanError


class LabError(FtstanError):
    """A machine, a tool or a step did not do what it had to."""
