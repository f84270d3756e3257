"""Dead letters in the metrics: by channel, as many as have series of their own."""

from __future__ import annotations

from ftstan.monitor.metrics import OTHERS, _dead_letters


def samples(kept: int) -> dict[str, float]:
    (family,) = _dead_letters({b"c": 3, b"a": 1, b"b": 2}, kept)
    return {sample.labels["channel"]: sample.value for sample in family.samples}


def test_channels_beyond_the_bound_are_counted_together() -> None:
    assert samples(3) == {"a": 1, "b": 2, "c": 3}
    assert samples(1) == {"a": 1, OTHERS: 5}
    assert samples(0) == {OTHERS: 6}
