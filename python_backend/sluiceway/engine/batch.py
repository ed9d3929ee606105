"""The members of the running batch."""

from __future__ import annotations

from sluiceway.engine.sequence import Sequence


class Batch:
    """In order of admission. light: whose client has plenty unread; prefilling: with tokens still to prefill."""

    def __init__(self) -> None:
        self.members: dict[str, Sequence] = {}
        self.light: set[str] = set()
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
            self.light.add(sequence.request_id)
        else:
            self.light.discard(sequence.request_id)

    def discard(self, sequence: Sequence) -> None:
        self.members.pop(sequence.request_id, None)
        self.light.discard(sequence.request_id)
        self.prefilling.pop(sequence.request_id, None)

    def newest(self) -> Sequence:
        """The newest light member, if there is one, else the newest."""
        newest_first = reversed(self.members.values())
        # In order of admission, not of becoming light: the planner relies on it.
        return next(sequence for sequence in newest_first if not self.light or sequence.weight < 1)

    def displaceable(self, admitted_until: int) -> list[Sequence]:
        """Light decoding members admitted not after that step, the lightest first, the newest first among equals."""
        if not self.light:
            return []
        ripe = [
            sequence
            for sequence in reversed(self.members.values())
            if sequence.weight < 1
            and sequence.admitted_at <= admitted_until
            and sequence.request_id not in self.prefilling
        ]
        return sorted(ripe, key=lambda sequence: sequence.weight)
