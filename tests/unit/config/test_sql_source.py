"""Which text says how to connect to the database, and that nothing shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ftstan.base.environment import SOURCE_VARIABLE, without_secrets
from ftstan.base.errors import ConfigError
from ftstan.config.flags import parse
from ftstan.config.options import ServerOptions, SqlOptions
from ftstan.config.sql_source import source_text
from tests.command_lines import to_options

if TYPE_CHECKING:
    from pathlib import Path


def _file(place: Path, text: str, mode: int = 0o600) -> str:
    path = place / "source"
    path.write_text(text, "utf-8")
    path.chmod(mode)
    return str(path)


def test_the_environment_goes_before_a_file_and_the_option(tmp_path: Path) -> None:
    path = _file(tmp_path, "# of the store\n\nu:p@/file\n")
    assert source_text(SqlOptions(source="u:p@/option"), {}) == "u:p@/option"
    assert source_text(SqlOptions(source_file=path), {}) == "u:p@/file"
    environment = {SOURCE_VARIABLE: "u:p@/environment"}
    assert source_text(SqlOptions(source_file=path), environment) == "u:p@/environment"
    assert source_text(SqlOptions(), {}) == ""


@pytest.mark.parametrize(
    ("text", "mode", "complaint"),
    [
        ("s3cret", 0o604, "is open to everybody (mode 0604)"),
        ("s3cret\ns3cret\n", 0o600, "has 2 lines that could be the source"),
        ("# s3cret\n", 0o600, "has 0 lines"),
        ("s3cret" * 20_000, 0o600, "lines that could be"),
    ],
)
def test_a_file_without_one_source_is_refused_and_not_shown(
    tmp_path: Path, text: str, mode: int, complaint: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        source_text(SqlOptions(source_file=_file(tmp_path, text, mode)), {})
    assert complaint in caught.value.text
    assert "s3cret" not in caught.value.text + caught.value.hint


def test_a_missing_file_and_a_directory_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(ConfigError, match="sql_source_file"):
            source_text(SqlOptions(source_file=str(path)), {})
    with pytest.raises(ConfigError, match="exclude each other"):
        source_text(SqlOptions(source="a/b", source_file="x"), {})


def test_neither_options_nor_children_show_a_source() -> None:
    options = to_options(parse(["-store", "sql", "-sql_driver", "mysql", "-sql_source", "u:pw@/d"]))
    assert options.sql.source == "u:pw@/d"
    assert "pw" not in repr(options)
    assert without_secrets({SOURCE_VARIABLE: "x", "PGPASSWORD": "x", "A": "b"}) == {"A": "b"}


def test_defaults_are_those_of_the_original() -> None:
    assert ServerOptions().sql == SqlOptions("", "", "", False, 0, 0)
