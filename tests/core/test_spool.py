from __future__ import annotations

import pytest

from sluiceway.core.commands import Frame
from sluiceway.core.events import FinishReason
from sluiceway.core.spool import Spool, SpoolPosition
from sluiceway.core.spool_errors import (
    FrameExpired,
    FrameUnknown,
    SpoolFull,
    StreamComplete,
    StreamExpired,
    StreamForeign,
    StreamUnknown,
)
from sluiceway.core.spool_limits import SpoolLimits
from sluiceway.core.spool_record import END_BYTES, cost_bytes, pack

FLOOR = 400


def frame(sequence, text="river ", reason=None):
    return Frame(sequence, sequence, (7,), text, 0, reason)


COST = cost_bytes(pack(frame(0)))


def spool(**limits):
    return Spool(SpoolLimits(**{"max_stream_bytes": 10_000, "retained_bytes": 10_000, "ttl_s": 300.0} | limits))


def filled(kept, stream_id="s", tenant="", frames=3, reason=None, floor=FLOOR):
    kept.open(stream_id, tenant, floor)
    for sequence in range(frames):
        kept.append(stream_id, frame(sequence, reason=reason if sequence == frames - 1 else None))


def test_a_client_that_comes_back_gets_exactly_the_rest():
    kept = spool()
    filled(kept, frames=5)
    assert kept.look_up("s", "", 2) == SpoolPosition(sequence=2, first_token_index=2)
    assert kept.read("s", 2, 10_000) == (frame(2), frame(3), frame(4))
    assert kept.look_up("s", "", 5) == SpoolPosition(sequence=5, first_token_index=5)
    assert kept.read("s", 5, 10_000) == ()


def test_reading_is_bounded_but_always_gets_on():
    kept = spool()
    filled(kept, frames=5)
    assert len(kept.read("s", 0, 2 * COST)) == 2
    assert len(kept.read("s", 0, 1)) == 1


def test_every_refusal_is_its_own_error():
    kept = spool(retained_bytes=0)
    filled(kept, "open", "mine")
    filled(kept, "done", "mine", reason=FinishReason.STOP)
    filled(kept, "old", "mine")
    kept.remove("old")
    kept.confirm("open", 2)
    for stream_id, tenant, sequence, error in [
        ("never", "mine", 0, StreamUnknown),
        ("open", "theirs", 0, StreamForeign),
        ("old", "theirs", 0, StreamForeign),
        ("old", "mine", 0, StreamExpired),
        ("open", "mine", 1, FrameExpired),
        ("open", "mine", 4, FrameUnknown),
        ("done", "mine", 3, StreamComplete),
        ("done", "mine", 9, StreamComplete),
    ]:
        with pytest.raises(error):
            kept.look_up(stream_id, tenant, sequence)
    assert len({error.code for error in (StreamUnknown, StreamForeign, StreamExpired, FrameExpired, FrameUnknown,
                                         StreamComplete)}) == 6  # fmt: skip


def test_frames_come_in_turn_and_end_once():
    kept = spool()
    filled(kept)
    with pytest.raises(ValueError, match="frame 5 is out of turn, 3 is next"):
        kept.append("s", frame(5))
    with pytest.raises(ValueError, match="known already"):
        kept.open("s", "", FLOOR)
    kept.append("s", frame(3, reason=FinishReason.STOP))
    with pytest.raises(StreamComplete):
        kept.append("s", frame(4))


def test_delivered_frames_are_kept_up_to_the_tail():
    kept = spool(retained_bytes=2 * COST)
    filled(kept, frames=6)
    kept.confirm("s", 5)
    assert kept.look_up("s", "", 3).sequence == 3  # 3 and 4: two delivered frames, then what is not delivered
    with pytest.raises(FrameExpired, match="the oldest is 3"):
        kept.look_up("s", "", 2)
    kept.confirm("s", 1)  # an older report changes nothing
    assert kept.look_up("s", "", 3).sequence == 3


def test_room_in_a_stream_is_made_from_delivered_frames_only():
    kept = spool(max_stream_bytes=FLOOR)
    fits = (FLOOR - END_BYTES) // COST
    filled(kept, frames=fits)
    with pytest.raises(SpoolFull, match="max_stream_bytes"):
        kept.append("s", frame(fits))
    assert kept.look_up("s", "", 0).sequence == 0
    kept.confirm("s", 2)
    kept.append("s", frame(fits))
    with pytest.raises(FrameExpired, match="the oldest is 1"):
        kept.look_up("s", "", 0)


def test_a_stream_that_does_not_fit_can_always_be_ended_with_a_word():
    kept = spool(max_stream_bytes=FLOOR)
    fits = (FLOOR - END_BYTES) // COST
    filled(kept, frames=fits)
    with pytest.raises(SpoolFull):
        kept.append("s", frame(fits))
    end = kept.cut("s", FinishReason.QUOTA)
    assert (end.sequence, end.first_token_index, end.finish_reason) == (fits, fits, FinishReason.QUOTA)
    assert kept.read("s", fits, 1) == (end,)


def test_what_is_wanted_when_a_client_is_back_is_not_dropped_however_much_the_old_one_got():
    kept = spool(retained_bytes=0, max_stream_bytes=10 * COST + END_BYTES)
    filled(kept, frames=6)
    kept.confirm("s", 1)
    kept.attach("s", 1)
    kept.confirm("s", 2)
    filled_up = 12 - 4 - 1
    for sequence in range(6, 6 + filled_up - 1):
        kept.append("s", frame(sequence))
    assert kept.look_up("s", "", 2).sequence == 2


def test_the_floor_is_reserved_from_the_start_and_given_back_at_the_end():
    kept = spool(max_bytes=2 * FLOOR, max_tenant_bytes=2 * FLOOR)
    filled(kept, "a")
    filled(kept, "b")
    with pytest.raises(SpoolFull, match=r"spool.max_tenant_bytes: 1200 bytes would be in use, 800 are allowed"):
        kept.open("c", "", FLOOR)
    assert kept.totals().refused == 1
    kept.append("a", frame(3, reason=FinishReason.STOP))
    assert kept.totals().charged_bytes == FLOOR + kept.totals().used_bytes - 3 * COST
    assert "c" not in kept


def test_a_tenant_cannot_take_what_is_the_others():
    kept = spool(max_bytes=10 * FLOOR, max_tenant_bytes=2 * FLOOR)
    filled(kept, "a", "greedy")
    filled(kept, "b", "greedy")
    with pytest.raises(SpoolFull, match="max_tenant_bytes"):
        kept.open("c", "greedy", FLOOR)
    kept.open("d", "other", FLOOR)


def test_answers_read_to_their_end_make_room_oldest_first_and_unread_ones_do_not():
    kept = spool(max_bytes=3 * FLOOR, max_tenant_bytes=3 * FLOOR)
    for stream_id in ("read-1", "read-2", "unread"):
        filled(kept, stream_id, reason=FinishReason.STOP)
        kept.leave(stream_id, 1.0, is_read=stream_id != "unread")
    kept.open("a", "", FLOOR)
    with pytest.raises(StreamExpired):
        kept.look_up("read-1", "", 0)
    assert kept.look_up("read-2", "", 0).sequence == 0
    kept.open("b", "", FLOOR)
    with pytest.raises(SpoolFull):
        kept.open("c", "", FLOOR)
    assert kept.look_up("unread", "", 0).sequence == 0
    assert kept.totals().evicted == 2


def test_somebody_who_reads_an_answer_again_keeps_it():
    kept = spool(max_bytes=2 * FLOOR, max_tenant_bytes=2 * FLOOR)
    filled(kept, "a", reason=FinishReason.STOP)
    kept.leave("a", 1.0, is_read=True)
    before = kept.free_bytes
    kept.attach("a", 0)
    assert kept.free_bytes < before
    kept.open("b", "", FLOOR)
    with pytest.raises(SpoolFull):
        kept.open("c", "", FLOOR)


def test_a_stream_expires_some_time_after_its_client_left_and_not_while_one_is_there():
    kept = spool()
    filled(kept)
    assert kept.next_deadline() is None
    kept.leave("s", 10.0, is_read=False)
    assert kept.next_deadline() == 310.0
    kept.attach("s", 3)
    assert kept.next_deadline() is None
    assert kept.expire(1000.0) == []
    kept.leave("s", 2000.0, is_read=False)
    assert kept.expire(2299.9) == []
    assert kept.expire(2300.0) == ["s"]
    with pytest.raises(StreamExpired):
        kept.read("s", 0, 100)
    assert kept.totals().charged_bytes == kept.totals().streams == 0


def test_of_the_expired_the_last_are_remembered():
    kept = spool(max_tombstones=2)
    for stream_id in ("a", "b", "c"):
        filled(kept, stream_id)
        kept.remove(stream_id)
    with pytest.raises(StreamUnknown):
        kept.look_up("a", "", 0)
    for stream_id in ("b", "c"):
        with pytest.raises(StreamExpired):
            kept.look_up(stream_id, "", 0)


def test_what_is_reserved_nobody_else_gets():
    kept = spool(max_bytes=4 * FLOOR, max_tenant_bytes=4 * FLOOR)
    filled(kept, "a")
    assert kept.reserve("a", 3 * FLOOR - 3 * COST)
    assert kept.totals().charged_bytes == 3 * FLOOR
    kept.open("b", "", FLOOR)
    assert not kept.reserve("a", 4 * FLOOR)
    assert not kept.reserve("b", 2 * FLOOR)
    assert kept.totals().charged_bytes == 4 * FLOOR


def test_a_grant_counts_until_it_is_revoked():
    kept = spool(max_bytes=1000, max_tenant_bytes=1000)
    assert kept.grant("r1", "", 600)
    assert not kept.grant("r2", "", 600)
    assert kept.grant("r1", "", 900)  # in place of the first
    assert kept.free_bytes == 100
    kept.revoke("r1")
    kept.revoke("r1")
    assert (kept.free_bytes, kept.totals().granted_bytes) == (1000, 0)


def test_a_tenant_s_limit_is_met_with_the_tenant_s_own_answers():
    kept = spool(max_tenant_bytes=3 * FLOOR)
    for stream_id, tenant in (("theirs", "other"), ("mine", "me")):
        filled(kept, stream_id, tenant, frames=4, reason=FinishReason.STOP)
        kept.leave(stream_id, 1.0, is_read=True)
    kept.open("next", "me", 3 * FLOOR)
    assert list(kept) == ["theirs", "next"]
    assert kept.totals().evicted == 1


def test_what_was_forgotten_does_not_expire_too():
    kept = spool()
    filled(kept, reason=FinishReason.STOP)
    kept.leave("s", 1.0, is_read=True)
    kept.remove("s")
    assert kept.next_deadline() is None
    assert kept.expire(1000.0) == []
    assert kept.totals().expired == 0
