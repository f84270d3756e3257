"""What the lab types of the operators' page, and how."""

from __future__ import annotations

import pytest

from lab.errors import LabError
from lab.pages import _BLOCKS, block, command
from lab.stages import ROOT

TEXT = """\
Look:

```sh
ftstanctl ft status --expect 2
curl -fsS http://host1:8222/readyz
```

   ```sh
   systemctl reload ftstan
   ```
"""


def test_the_block_of_a_line_is_found_however_it_is_indented() -> None:
    assert block(TEXT, "curl") == [
        "ftstanctl ft status --expect 2",
        "curl -fsS http://host1:8222/readyz",
    ]
    assert block(TEXT, "systemctl reload") == ["systemctl reload ftstan"]
    with pytest.raises(LabError, match=r"docs/operate.md has no block with 'umount'"):
        block(TEXT, "umount")


def test_the_page_has_every_block_that_is_typed() -> None:
    text = (ROOT / "docs" / "operate.md").read_text(encoding="utf-8")
    assert all(len(block(text, line)) > 1 for line in _BLOCKS)


def test_a_line_is_typed_with_the_labs_names_and_as_the_servers_user_if_it_needs_a_key() -> None:
    typed = command("ftstanctl server reload host2 --dir /nss/orders", "b", "a")
    assert typed == (
        "cd / && export FTSTAN_SERVERS=nats://a:4222,nats://b:4222 FTSTAN_CLUSTER_ID=lab "
        "FTSTAN_GROUP=lab"
        " && sudo -E -u ftstan ftstanctl server reload a --dir /nss/lab"
    )
    assert command("systemctl reload ftstan", "b", "a").endswith(" && systemctl reload ftstan")
    assert command("ftstanctl store du /nss/orders", "b", "a").endswith(
        "-u ftstan ftstanctl store du /nss/lab"
    )
