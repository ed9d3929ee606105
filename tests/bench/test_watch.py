from __future__ import annotations

from sluiceway.cli.bench.watch import Watch


def statistics(now, tokens, state="streaming", client_id="w"):
    size = {"tokens": tokens, "bytes": 5 * tokens, "frames": tokens}
    levels = dict.fromkeys(("produced", "sent", "forwarded", "delivered"), size)
    return {"now": now, "streams": [{"client_id": client_id, "state": state, **levels}]}


def watch(*samples):
    seen = Watch(stopped_at=100.0, read_tokens=10, read_bytes=50)
    for now, tokens, state in samples:
        seen.add(statistics(now, tokens, state), client_id="w")
    return seen


def test_a_level_shows_the_stop_when_it_last_grew():
    seen = watch((100.0, 10, "streaming"), (100.5, 30, "streaming"), (101.0, 30, "paused"), (102.0, 30, "preempted"))
    figures = seen.figures()["levels"]
    assert figures["delivered"] == {"after_s": 0.5, "ahead_tokens": 20, "ahead_bytes": 100}
    assert figures["paused"]["after_s"] == 1.0


def test_a_level_that_still_grows_shows_nothing():
    figures = watch((100.0, 10, "streaming"), (101.0, 30, "streaming"), (101.5, 50, "streaming")).figures()
    assert figures["levels"]["delivered"]["after_s"] is None
    assert figures["levels"]["paused"]["after_s"] is None


def test_other_streams_are_ignored():
    seen = watch((100.0, 10, "streaming"))
    seen.add(statistics(101.0, 5, client_id="other"), client_id="w")
    assert len(seen.samples) == 1
