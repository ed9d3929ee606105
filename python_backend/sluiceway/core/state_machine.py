"""Where one stream stands in the table of transitions."""

from __future__ import annotations

from sluiceway.core.states import State
from sluiceway.core.transitions import TRANSITIONS, Trigger


class StateMachine:
    """Shared by the parts of one stream: each moves it by what it is there to notice."""

    def __init__(self) -> None:
        self.state = State.WAITING

    def move(self, trigger: Trigger) -> None:
        """Raises KeyError for a pair that is not in the table: that is a defect of ours."""
        self.state = TRANSITIONS[self.state, trigger]
