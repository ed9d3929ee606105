"""How long what is unread lasts a client: literal clients, literal times."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluiceway.core.cushion import Cushion
from sluiceway.core.limits import CushionLimits, Size

LIMITS = CushionLimits(high_s=4.0, low_s=2.0, quiet_s=1.0, min_tokens=16)


class Client:
    """Takes ``rate`` tokens a second, in records of 0.1 s, of what is made for it at ``made`` a second."""

    def __init__(self, limits: CushionLimits = LIMITS) -> None:
        self.now = 100.0
        self.cushion = Cushion(limits, self.now)
        self.produced = self.taken = 0.0
        self.moved_at = self.now

    def run(self, seconds: float, *, rate: float, made: float) -> bool:
        for _ in range(round(seconds * 10)):
            self.now += 0.1
            self.produced += made / 10
            before = int(self.taken)
            self.taken = min(self.produced, self.taken + rate / 10)
            if int(self.taken) > before or self.unread == 0:
                self.moved_at = self.now
            self.cushion.observe(tokens(int(self.taken)), tokens(self.unread), self.now)
            self.cushion.update(self.unread, self.now - self.moved_at, self.now)
        return self.cushion.is_ample

    @property
    def unread(self) -> int:
        return int(self.produced) - int(self.taken)


def tokens(count: int) -> Size:
    return Size(bytes=5 * count, tokens=count, frames=0)


def test_a_reader_that_keeps_up_never_has_plenty() -> None:
    client = Client()
    for _ in range(100):
        assert not client.run(1, rate=100, made=40)


def test_one_that_takes_nothing_has_plenty_after_a_second_of_silence() -> None:
    client = Client()
    assert not client.run(0.9, rate=0, made=40)
    assert client.run(0.3, rate=0, made=40)
    assert client.unread < 50


def test_few_tokens_are_never_plenty() -> None:
    client = Client()
    client.run(0.3, rate=0, made=40)
    assert not client.run(60, rate=0, made=0)
    assert client.unread < LIMITS.min_tokens


def test_a_slow_reader_has_plenty_at_four_seconds_of_its_reading_and_no_more_at_two() -> None:
    client = Client()
    while not client.run(0.1, rate=10, made=40):
        assert client.unread < 50
    assert client.unread >= 40
    while client.run(0.1, rate=10, made=0):
        assert client.unread >= 20
    assert client.unread >= 18, "it is back before the reader runs dry"


def test_what_the_buffers_swallow_at_first_is_forgotten() -> None:
    client = Client()
    client.run(1, rate=200, made=40)  # 40 tokens into its buffers
    while not client.run(0.1, rate=4, made=40):
        pass
    assert client.now <= 104.6
    assert client.unread <= 130


def test_a_lump_that_is_taken_ends_the_silence() -> None:
    client = Client()
    assert client.run(3, rate=0, made=20)
    assert not client.run(0.1, rate=1000, made=0)


@given(st.lists(st.tuples(st.floats(0.1, 5), st.floats(0, 100)), min_size=1, max_size=20))
def test_a_steady_client_does_not_flap(spans: list[tuple[float, float]]) -> None:
    """Whatever came before: with nothing made and nothing taken, nothing changes after a second of silence."""
    client = Client()
    for seconds, rate in spans:
        client.run(seconds, rate=rate, made=30)
    client.run(1.1, rate=0, made=0)
    seen = {client.run(0.1, rate=0, made=0) for _ in range(100)}
    assert seen == {client.unread >= LIMITS.min_tokens // 2} or seen == {client.unread >= LIMITS.min_tokens}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"low_s": 5.0}, "low_s is 5.0"),
        ({"low_s": 0.0}, "low_s is 0.0"),
        ({"quiet_s": 0.0}, "quiet_s is 0.0"),
        ({"min_tokens": 0}, "min_tokens is 0"),
    ],
)
def test_limits_that_make_no_sense_are_refused(change: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CushionLimits(**change)  # type: ignore[arg-type]
