from __future__ import annotations

import math

from sluiceway.cli.bench.watch import Watch


def size(tokens):
    return {"tokens": tokens, "bytes": 5 * tokens, "frames": tokens}


def statistics(now, tokens, state="streaming", consumed=0):
    levels = dict.fromkeys(("produced", "sent", "forwarded", "delivered"), size(tokens))
    return {"now": now, "streams": [{"state": state, **levels, "consumed": size(consumed)}]}


def watch(*samples):
    seen = Watch(stopped_at=100.0, read_tokens=10, read_bytes=50)
    for sample in samples:
        seen.add(statistics(*sample))
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


def test_hidden_is_what_counts_as_with_the_client_beyond_what_it_read():
    figures = watch((100.0, 10, "streaming"), (100.5, 30, "streaming"), (101.0, 20, "paused")).figures()
    assert figures["hidden_kib"] == round(20 * 5 / 1024, 2)
    assert figures["ran_ahead_kib"] == figures["hidden_kib"]


def test_a_client_that_acknowledges_has_what_it_acknowledged():
    figures = watch((100.0, 30, "streaming", 10), (101.5, 30, "paused", 10)).figures()
    assert figures["hidden_kib"] == 0
    assert figures["levels"]["with_client"] == {"after_s": 0.0, "ahead_tokens": 0, "ahead_bytes": 0}
    assert figures["ran_ahead_kib"] > 0


def test_bytes_are_the_clients_where_it_counted_them_and_ours_where_not():
    counted = Watch(stopped_at=100.0, read_tokens=10, read_bytes=700)
    uncounted = Watch(stopped_at=100.0, read_tokens=10, read_bytes=0)
    for each in (counted, uncounted):
        each.add(statistics(100.0, 20))
    assert (counted.hidden_bytes(), uncounted.hidden_bytes()) == (700, 50)


def test_nothing_seen_is_not_nothing_hidden():
    assert math.isnan(watch().hidden_bytes())
