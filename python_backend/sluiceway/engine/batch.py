"""The members of the running batch."""

from __future__ import annotations

from sluiceway.engine.sequence import Sequence


class Batch:
    """In order of admission. light: whose client has plenty unread; prefilling: with tokens still to prefill."""

    def __init__(self) -> None:
        self.members: dict[str, Sequence] = {}
        self.light: dict[str, Sequence] = {}
        self.prefilling: dict[str, Sequence] = {}

    def __len__(self) -> int:
        return len(self.members)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence.request_id in self.members

    def add(self, sequence: Sequence, step: int) -> None:
        self.members[sequence.request_id] = sequence
        sequence.admitted_at = step
        if not sequence.is_decoding:
            self.prefilling[sequence.request_id] = sequence
        self.weigh(sequence)

    def weigh(self, sequence: Sequence) -> None:
        """A member's weight may have changed."""
        if sequence.weight < 1:
            self.light[sequence.request_id] = sequence
        else:
            self.light.pop(sequence.request_id, None)

    def discard(self, sequence: Sequence) -> None:
        self.members.pop(sequence.request_id, None)
        self.light.pop(sequence.request_id, None)
        self.prefilling.pop(sequence.request_id, None)

    def newest(self) -> Sequence:
        """The newest light member, if there is one, else the newest."""
        members = self.light or self.members
        return members[next(reversed(members))]

    def displaceable(self, admitted_until: int) -> list[Sequence]:
        """Light decoding members admitted not after that step, the lightest first, the newest first among equals."""
        ripe = [
            sequence
            for sequence in reversed(self.light.values())
            if sequence.admitted_at <= admitted_until and sequence.request_id not in self.prefilling
        ]
        return sorted(ripe, key=lambda sequence: sequence.weight)
