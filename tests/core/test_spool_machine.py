"""The ledger against a model that keeps everything: any sequence of calls, checked after each."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from sluiceway.core.commands import Frame
from sluiceway.core.events import FinishReason
from sluiceway.core.spool import Spool
from sluiceway.core.spool_errors import FrameExpired, ResumeRefused, SpoolFull, StreamExpired, StreamUnknown
from sluiceway.core.spool_limits import SpoolLimits
from sluiceway.core.spool_record import END_BYTES

LIMITS = SpoolLimits(
    max_stream_bytes=900, max_tenant_bytes=1800, max_bytes=2600, retained_bytes=250, ttl_s=10.0, max_tombstones=3
)
FLOOR = 350
IDS = st.sampled_from(["a", "b", "c", "d"])


class Ledger(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.spool = Spool(LIMITS)
        self.now = 0.0
        self.frames = {}  # stream to every frame it ever had
        self.owners = {}
        self.wanted = {}  # from which frame on nothing may be missing
        self.attached = set()
        self.left_at = {}
        self.made = 0

    @property
    def kept(self):
        return [name for name in self.frames if name in self.spool]

    def forget(self):
        for name in [name for name in self.frames if name not in self.spool]:
            assert name not in self.attached, "a stream with a client went away"
            for table in (self.frames, self.owners, self.wanted, self.left_at):
                table.pop(name, None)

    @rule(letter=IDS, tenant=st.sampled_from(["t", "u"]))
    def open(self, letter, tenant):
        self.made += 1
        name = f"{letter}{self.made}"
        try:
            self.spool.open(name, tenant, FLOOR)
        except SpoolFull:
            assert name not in self.spool
        else:
            self.frames[name], self.owners[name], self.wanted[name] = [], tenant, 0
            self.attached.add(name)
        self.forget()

    @rule(data=st.data(), size=st.integers(0, 120), end=st.booleans())
    def append(self, data, size, end):
        open_ones = [n for n in self.kept if not self.frames[n] or self.frames[n][-1].finish_reason is None]
        if not open_ones:
            return
        name = data.draw(st.sampled_from(open_ones))
        sequence = len(self.frames[name])
        frame = Frame(sequence, sequence, (1,), "x" * size, 0, FinishReason.STOP if end else None)
        try:
            self.spool.append(name, frame)
        except SpoolFull:
            frame = self.spool.cut(name, FinishReason.QUOTA)
        self.frames[name].append(frame)
        self.forget()

    @rule(data=st.data(), sequence=st.integers(0, 30))
    def confirm(self, data, sequence):
        if self.kept:
            name = data.draw(st.sampled_from(self.kept))
            self.spool.confirm(name, sequence)
            if name in self.attached:
                self.wanted[name] = max(self.wanted[name], min(sequence, len(self.frames[name])))

    @rule(data=st.data(), is_read=st.booleans())
    def leave(self, data, is_read):
        if self.attached:
            name = data.draw(st.sampled_from(sorted(self.attached)))
            self.spool.leave(name, self.now, is_read=is_read)
            self.attached.discard(name)
            self.left_at[name] = self.now

    @rule(data=st.data(), sequence=st.integers(0, 30))
    def come_back(self, data, sequence):
        if not self.kept:
            return
        name = data.draw(st.sampled_from(self.kept))
        try:
            self.spool.look_up(name, self.owners[name], sequence)
        except ResumeRefused as refusal:
            if isinstance(refusal, FrameExpired):
                assert sequence < self.wanted[name], "a frame that nobody has got is gone"
            return
        self.spool.attach(name, sequence)
        self.attached.add(name)
        self.left_at.pop(name, None)
        self.wanted[name] = sequence
        assert list(self.spool.read(name, sequence, 10**6)) == self.frames[name][sequence:]

    @rule(data=st.data(), more=st.integers(0, 900))
    def reserve(self, data, more):
        if self.kept:
            self.spool.reserve(data.draw(st.sampled_from(self.kept)), more)
            self.forget()

    @rule(key=IDS, amount=st.integers(0, 900))
    def grant(self, key, amount):
        self.spool.grant(key, "t", amount)
        self.forget()

    @rule(key=IDS)
    def revoke(self, key):
        self.spool.revoke(key)

    @rule(seconds=st.sampled_from([1.0, 6.0]))
    def pass_time(self, seconds):
        self.now += seconds
        due = {n for n, at in self.left_at.items() if at + LIMITS.ttl_s <= self.now}
        assert set(self.spool.expire(self.now)) == due
        for name in due:
            with pytest.raises((StreamExpired, StreamUnknown)):
                self.spool.read(name, 0, 1)
        self.forget()

    @invariant()
    def never_more_than_allowed(self):
        totals = self.spool.totals()
        assert totals.charged_bytes <= LIMITS.max_bytes
        assert totals.used_bytes + totals.granted_bytes <= totals.charged_bytes
        assert totals.free_bytes >= 0
        for tenant in ("t", "u"):
            streams = [self.spool._streams[n] for n in self.kept if self.owners[n] == tenant]
            grants = totals.granted_bytes if tenant == "t" else 0
            charged = sum(stream.charged for stream in streams) + grants
            assert charged == self.spool._budget._tenants.get(tenant, 0) <= LIMITS.max_tenant_bytes
        for name in self.kept:
            stream = self.spool._streams[name]
            assert stream.charged == stream.charge() <= LIMITS.max_stream_bytes
            assert stream.is_complete or stream.bytes + END_BYTES <= stream.charged
            assert 0 <= stream.delivered_bytes <= max(LIMITS.retained_bytes, stream.bytes)

    @invariant()
    def nothing_that_is_wanted_is_gone(self):
        for name in self.kept:
            assert list(self.spool.read(name, self.wanted[name], 10**6)) == self.frames[name][self.wanted[name] :]


TestLedger = Ledger.TestCase
TestLedger.settings = settings(max_examples=120, stateful_step_count=60, deadline=None)
