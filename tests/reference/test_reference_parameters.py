"""The tables of parameters in the README of nats-streaming-server v0.10.0: every usage example, in
its map.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ftstan.base.errors import ConfigError
from ftstan.config.flags import parse, to_settings
from tests.command_lines import to_options
from tests.processes import ROOT

if TYPE_CHECKING:
    from pathlib import Path

TABLES = (ROOT / "tests" / "data" / "reference" / "v0.10-parameters.txt").read_text(
    encoding="utf-8"
)

EXAMPLES = [tuple(line.split(" | ")) for line in TABLES.splitlines() if " | " in line]

#: Maps of what is planned: read, checked, and refused by name.
REFUSED = ("cluster",)
#: What an example needs beside it to make sense. (That a value is the default is no reason to
#: refuse it.)
WITH = {
    "ft_group": 'store: file, dir: "x"',
    "client_cert": 'client_key: "x"',
    "client_key": 'client_cert: "x"',
}
#: What the tables show at its default.
SAME_AS_DEFAULT = {
    "no_caching: false",
    *(
        'hb_timeout: "10s"',
        "max_channels: 100",
        "compact: true",
        "compact_fragmentation: 50",
        "compact_interval: 300",
    ),
    *(
        "buffer_size: 2MB",
        "crc: true",
        "crc_poly: 3988292384",
        "sync_on_flush: true",
        "slice_max_bytes: 64MB",
    ),
}


def configuration(place: str, example: str) -> str:
    """The example in its map of a ``streaming`` map."""
    inside = f"{example}\n{WITH.get(example.partition(':')[0], '')}\n"
    if place == "channel":
        inside = f'store_limits {{ channels {{ "foo" {{\n{inside}}} }} }}\n'
    elif place != "streaming":
        inside = f'{place} {{\n{inside}}}\nstore: file, dir: "x"\n'
    return f"streaming {{\n{inside}}}\n"


@pytest.mark.parametrize(("place", "example"), EXAMPLES)
def test_a_usage_example_is_read_or_refused_by_name(
    place: str, example: str, tmp_path: Path
) -> None:
    file = tmp_path / "server.conf"
    file.write_text(configuration(place, example))
    line = parse(["-c", str(file)])
    key = example.partition(":")[0]
    if place in REFUSED:
        with pytest.raises(
            ConfigError, match="is not supported by this version of ftstan"
        ) as refused:
            to_options(line)
        assert place in refused.value.text or key in refused.value.text
        return
    settings = to_settings(line)
    assert (settings.unknown_keys, settings.warnings) == ([], [])
    to_options(line)


@pytest.mark.parametrize(
    ("place", "example"), [one for one in EXAMPLES if one[0] not in (*REFUSED, "channel")]
)
def test_a_usage_example_changes_the_options(place: str, example: str, tmp_path: Path) -> None:
    file = tmp_path / "server.conf"
    file.write_text(configuration(place, example))
    bare = tmp_path / "bare.conf"
    bare.write_text(configuration(place, example).replace(example, ""))
    same = to_options(parse(["-c", str(file)])) == to_options(parse(["-c", str(bare)]))
    assert same is (example in SAME_AS_DEFAULT)


def test_no_example_is_left_out() -> None:
    assert len(EXAMPLES) == 54
