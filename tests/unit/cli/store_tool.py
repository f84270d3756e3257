"""``ftstanctl store`` as an operator types it, and damage for it to find."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftstan.cli import ctl

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Exit status, output and errors of one command."""
    capsys.readouterr()
    status = ctl.main(["store", *words])
    out = capsys.readouterr()
    return status, out.out, out.err


def flip(path: Path, offset: int) -> None:
    """Turn every bit of the byte at ``offset``."""
    with open(path, "r+b") as f:
        f.seek(offset)
        byte = f.read(1)
        f.seek(offset)
        f.write(bytes([byte[0] ^ 0xFF]))
