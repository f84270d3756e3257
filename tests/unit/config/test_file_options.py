"""Options of the file store in a configuration file: every key, under each of its names."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

import pytest

from ftstan.config.flags import parse
from ftstan.config.options import FileOptions
from ftstan.config.units import MINUTE
from tests.command_lines import to_options

if TYPE_CHECKING:
    from pathlib import Path

KEYS = [
    ("compact_enabled", "compact compact_enabled", "false", False),
    ("compact_fragmentation", "compact_frag compact_fragmentation", "7", 7),
    ("compact_interval", "compact_interval", "7", 7),
    ("compact_min_size", "compact_min_size", "7KB", 7 << 10),
    ("buffer_size", "buffer_size", "7KB", 7 << 10),
    ("read_buffer_size", "file_read_buffer_size read_buffer_size", "7KB", 7 << 10),
    ("crc", "crc do_crc", "false", False),
    ("crc_poly", "crc_poly", "2197175160", 2_197_175_160),
    ("sync", "sync do_sync sync_on_flush", "false", False),
    ("auto_sync", "file_auto_sync auto_sync", '"2m"', 2 * MINUTE),
    ("slice_max_msgs", "slice_max_msgs slice_max_count slice_msgs slice_count", "7", 7),
    ("slice_max_bytes", "slice_max_bytes slice_max_size slice_bytes slice_size", "7KB", 7 << 10),
    ("slice_max_age", "slice_max_age slice_age slice_max_time slice_time_limit", '"1m"', MINUTE),
    (
        "slice_archive_script",
        "slice_archive_script slice_archive slice_script",
        '"/bin/keep"',
        "/bin/keep",
    ),
    ("fds_limit", "file_descriptors_limit fds_limit", "7", 7),
    ("parallel_recovery", "parallel_recovery", "7", 7),
]
CASES = [(field, name, text, value) for field, names, text, value in KEYS for name in names.split()]


def options(directory: Path, text: str, *flags: str) -> FileOptions:
    path = directory / "server.conf"
    path.write_text(text, encoding="utf-8")
    return to_options(parse([*flags, "-sc", str(path)])).file


@pytest.mark.parametrize(("field", "name", "text", "value"), CASES, ids=[case[1] for case in CASES])
def test_a_key_sets_its_option_alone(
    field: str, name: str, text: str, value: object, tmp_path: Path
) -> None:
    for section in ("file", "file_options", "FILE"):
        found = options(tmp_path, f"streaming {{ {section} {{ {name}: {text} }} }}\n")
        changed = {
            f.name: getattr(found, f.name)
            for f in fields(found)
            if getattr(found, f.name) != f.default
        }
        assert changed == {field: value}


def test_the_truncating_option_has_no_key(tmp_path: Path) -> None:
    assert (
        options(tmp_path, "file_options { truncate_bad_eof: true, file_truncate_bad_eof: true }\n")
        == FileOptions()
    )


def test_a_flag_wins_over_the_file(tmp_path: Path) -> None:
    found = options(
        tmp_path, "file { slice_max_msgs: 7, slice_msgs: 7 }\n", "-file_slice_max_msgs", "9"
    )
    assert found.slice_max_msgs == 9
