"""What a member is called."""

from __future__ import annotations

import socket
from dataclasses import replace

import pytest

from ftstan.base.errors import ConfigError
from ftstan.config.member import MAX_MEMBER_NAME, member_name
from ftstan.config.options import FtOptions, MonitorOptions, NatsOptions, ServerOptions
from ftstan.config.validation import check_start

HOST = socket.gethostname()
OPTIONS = ServerOptions(
    store="FILE", dir="/d", ft_group="g", nats=NatsOptions(port=4333), monitor=MonitorOptions()
)
OUTSIDE = replace(OPTIONS, nats_servers=("nats://a:4222",))


@pytest.mark.parametrize(
    ("options", "name"),
    [
        (replace(OPTIONS, ft=FtOptions(member="node-a")), "node-a"),
        (OPTIONS, f"{HOST}:4333"),
        (replace(OPTIONS, nats=NatsOptions(port=-1)), HOST),
        (OUTSIDE, HOST),
        (replace(OUTSIDE, monitor=MonitorOptions(http_port=8222)), f"{HOST}:8222"),
        (replace(OUTSIDE, monitor=MonitorOptions(https_port=8443)), f"{HOST}:8443"),
    ],
)
def test_a_name_is_the_configured_one_or_host_and_port(options: ServerOptions, name: str) -> None:
    assert member_name(options) == name


def test_the_name_of_a_long_host_fits_an_epoch_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "h" * 64)
    assert len(member_name(replace(OPTIONS, nats=NatsOptions(port=65_535)))) == MAX_MEMBER_NAME


@pytest.mark.parametrize("name", ["a b", "a\n", "\x1b[0m", "x" * 65, "\u00e9" * 33])
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="is no name"):
        check_start(replace(OPTIONS, ft=FtOptions(member=name)))
