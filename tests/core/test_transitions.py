from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from sluiceway.core.states import State
from sluiceway.core.transitions import EVENTS, TRANSITIONS, states_page

PAGE = Path(__file__).parents[2] / "docs" / "states.md"


def reachable(start: State) -> set[State]:
    seen = {start}
    while more := {after for (before, _), after in TRANSITIONS.items() if before in seen} - seen:
        seen |= more
    return seen


def test_the_page_is_what_the_table_says() -> None:
    assert PAGE.read_text() == states_page(), "run: python -m sluiceway.core.transitions > docs/states.md"


@pytest.mark.filterwarnings("ignore:.*found in sys.modules.*:RuntimeWarning")
def test_the_module_prints_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_module("sluiceway.core.transitions", run_name="__main__")
    assert capsys.readouterr().out == states_page()


def test_every_state_is_reachable_and_leads_to_the_end() -> None:
    assert reachable(State.WAITING) == set(State)
    assert all(State.FINISHED in reachable(state) for state in State)


def test_nothing_leads_out_of_the_end() -> None:
    assert reachable(State.FINISHED) == {State.FINISHED}


def test_the_table_says_for_each_state_which_events_it_takes() -> None:
    assert set(EVENTS) == set(State)
