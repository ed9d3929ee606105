"""The shared engine under every interleaving: blocks, chunks, answers, progress."""

from __future__ import annotations

import math

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from sluiceway.engine.prices import Prices
from sluiceway.engine.protocol import EngineRequest, SamplingParams
from sluiceway.engine.scripted import EOS_TOKEN_ID, ScriptedEngine, scripted_answer

IDS = st.sampled_from([f"r{index}" for index in range(6)])
CHUNK = 5


class EngineMachine(RuleBasedStateMachine):
    """Few blocks, slots and room on the host, and one block copied each way in a step: preemption, taking KV
    from paused ones and calls in the middle of a copy happen all the time.

    The engine reads all KV that a model would; freed blocks are poisoned (ScriptedKv).
    """

    BLOCKS = 7
    HOST_BLOCKS = 4

    def __init__(self) -> None:
        super().__init__()
        self.engine = ScriptedEngine(
            step_s=0,
            script="unicode",
            kv_blocks=self.BLOCKS,
            kv_block_tokens=3,
            max_batch_streams=3,
            prefill_chunk_tokens=CHUNK,
            kv_bytes_per_token=10,
            host_kv_bytes=30 * self.HOST_BLOCKS,
            admission_free_share=0.15,
            check_kv=True,
        )
        self.scheduler = self.engine._scheduler
        self.scheduler._kv.swap._per_step = 1
        self.scheduler._planner._quantum_steps = 2
        self.wanted: dict[str, tuple[tuple[int, ...], int]] = {}
        self.got: dict[str, tuple[list[int], bytes]] = {}
        self.paused: set[str] = set()
        self.aborts = 0

    @rule(request_id=IDS, prompt=st.lists(st.integers(0, 255), min_size=1, max_size=12), tokens=st.integers(1, 14))
    def submit(self, request_id: str, prompt: list[int], tokens: int) -> None:
        request = EngineRequest(
            request_id=request_id, prompt_token_ids=tuple(prompt), sampling=SamplingParams(max_tokens=tokens)
        )
        if request_id in self.wanted:
            with pytest.raises(ValueError, match="already"):
                self.engine.submit(request)
            return
        self.engine.submit(request)
        self.wanted[request_id] = (tuple(prompt), min(tokens, self.engine.context_tokens - len(prompt)))
        self.got[request_id] = ([], b"")

    @rule(request_id=IDS)
    def pause(self, request_id: str) -> None:
        self.engine.pause(request_id)
        if request_id in self.wanted:
            self.paused.add(request_id)

    @rule(request_id=IDS)
    def resume(self, request_id: str) -> None:
        self.engine.resume(request_id)
        self.paused.discard(request_id)

    @rule(request_id=IDS)
    def release_kv(self, request_id: str) -> None:
        self.engine.release_kv(request_id)
        if request_id in self.paused:
            request = self.engine.statistics().requests[request_id]
            assert (request.kv_blocks, request.host_blocks) == (0, 0)

    @rule(request_id=IDS)
    def swap_out(self, request_id: str) -> None:
        before = self.engine.statistics()
        request = before.requests.get(request_id)
        self.engine.swap_out(request_id)
        if request is None or request_id not in self.paused or request.host_blocks:
            assert self.engine.statistics() == before
        elif 0 < request.kv_blocks <= before.host_blocks_free:
            assert self.engine.statistics().requests[request_id].host_blocks == request.kv_blocks

    @rule(recompute_s=st.sampled_from([0.0, 1.0, 100.0]), swap_s=st.sampled_from([0.5, 50.0, math.inf]))
    def set_prices(self, recompute_s: float, swap_s: float) -> None:
        self.scheduler.set_prices(Prices(recompute_s=recompute_s, swap_s=swap_s))

    @rule(request_id=IDS, weight=st.sampled_from([0.0625, 0.25, 1.0, 1.0]))
    def set_weight(self, request_id: str, weight: float) -> None:
        self.engine.set_weight(request_id, weight)

    @rule(request_id=IDS)
    def abort(self, request_id: str) -> None:
        before = self.engine.statistics()
        held = before.requests[request_id].kv_blocks if request_id in before.requests else 0
        on_host = before.requests[request_id].host_blocks if request_id in before.requests else 0
        assert self.engine.abort(request_id) == (request_id in self.wanted)
        after = self.engine.statistics()
        assert after.kv_blocks_free == before.kv_blocks_free + held
        assert after.host_blocks_free == before.host_blocks_free + on_host
        if request_id in self.wanted:
            self.aborts += 1
            # The event of the abort comes first in the next step.
            self.step()
            assert request_id not in self.wanted

    @rule()
    def step(self) -> None:
        before = self.engine.statistics()
        computed = {key: s.computed for key, s in self.engine._scheduler.sequences.items()}
        events = self.engine.step()
        prefilled = sum(
            max(0, sequence.computed - computed[key])
            for key, sequence in self.engine._scheduler.sequences.items()
            if key in computed and sequence.computed - computed[key] > 1
        )
        assert prefilled <= CHUNK
        if before.requests.keys() - self.paused:
            assert self.engine.statistics().steps == before.steps + 1, "no progress"
        for event in events:
            assert event.request_id not in self.paused or event.finish_reason == "cancelled"
            token_ids, text = self.got[event.request_id]
            self.got[event.request_id] = (token_ids + list(event.token_ids), text + event.text)
            if event.finish_reason is not None:
                self.ended(event.request_id, event.finish_reason.value)

    def ended(self, request_id: str, reason: str) -> None:
        prompt, tokens = self.wanted.pop(request_id)
        self.paused.discard(request_id)
        token_ids, text = self.got.pop(request_id)
        if reason != "cancelled":
            assert len(token_ids) == tokens
        assert (token_ids, text) == scripted_answer(prompt, len(token_ids), "unicode")

    @invariant()
    def every_block_has_one_owner(self) -> None:
        sequences = self.scheduler.sequences.values()
        for pool, held in (
            (self.scheduler.pool, [block for sequence in sequences for block in sequence.blocks]),
            (self.scheduler.host_pool, [block for sequence in sequences for block in sequence.host_blocks]),
        ):
            assert len(set(held)) == len(held)
            assert set(held) == pool._allocated
            assert pool.free_count + len(held) == pool.total
        for sequence in sequences:
            assert bool(sequence.blocks and sequence.host_blocks) == (sequence.transfer is not None)
            if sequence.state.value == "swapped":
                assert sequence.host_blocks
                assert not sequence.blocks
        assert self.scheduler._kv.swap.leaving_blocks == sum(
            len(sequence.blocks) for sequence in sequences if sequence.transfer and sequence.transfer.is_out
        )

    @invariant()
    def holders_are_who_is_outside_the_batch(self) -> None:
        kv, batch = self.scheduler._kv, self.scheduler._batch
        groups = [kv._paused, kv._deferred, kv._resumed]
        for group in groups:
            assert group.blocks == sum(len(sequence.blocks) for sequence in group._sequences.values())
        for sequence in self.scheduler.sequences.values():
            should = bool(sequence.blocks) and sequence.transfer is None and sequence not in batch
            assert sum(sequence in group for group in groups) == should
            assert (sequence.ticket is not None) == (
                sequence not in batch and not sequence.is_paused and sequence.request_id not in kv.swap.ins
            )

    @invariant()
    def statistics_agree(self) -> None:
        statistics = self.engine.statistics()
        assert statistics.requests.keys() == self.wanted.keys()
        assert statistics.running + len(self.scheduler._kv.swap.ins) <= 3
        assert statistics.aborts == self.aborts
        states = [request.state for request in statistics.requests.values()]
        assert statistics.swapped == states.count("swapped")
        load = self.engine.load()
        assert (load.kv_blocks_free, load.host_blocks_free) == (
            statistics.kv_blocks_free, statistics.host_blocks_free,
        )  # fmt: skip
        assert load.waiting <= states.count("waiting") + states.count("preempted") + states.count("swapped")

    def teardown(self) -> None:
        """Whatever happened, everything that is not paused ends, with paused ones holding what they can."""
        for _ in range(400):
            if not self.engine.has_work():
                break
            self.step()
        assert set(self.wanted) == self.paused
        for request_id in list(self.paused):
            self.resume(request_id)
        for _ in range(400):
            if not self.engine.has_work():
                break
            self.step()
        assert not self.wanted
        assert self.engine.statistics().kv_blocks_free == self.BLOCKS
        assert self.engine.statistics().host_blocks_free == self.HOST_BLOCKS


TestEngine = EngineMachine.TestCase
TestEngine.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)


def test_max_min_tokens_end_of_script_and_ignore_eos(request_of, collect) -> None:
    engine = ScriptedEngine(step_s=0, answer_tokens=3)
    engine.submit(request_of("ends", [5], max_tokens=10))
    engine.submit(request_of("at least", [5], max_tokens=10, min_tokens=6))
    engine.submit(request_of("ignores", [5], max_tokens=10, ignore_eos=True))
    collected = collect(engine).run()
    assert collected.token_ids["ends"] == [*scripted_answer([5], 3)[0], EOS_TOKEN_ID]
    assert collected.token_ids["at least"] == [*scripted_answer([5], 6)[0], EOS_TOKEN_ID]
    assert collected.token_ids["ignores"] == scripted_answer([5], 10)[0]
    assert collected.reasons == {"ends": ["stop"], "at least": ["stop"], "ignores": ["length"]}


def test_text_held_back_for_a_stop_string_comes_with_the_end(request_of, collect) -> None:
    text = scripted_answer([9], 3)[1].decode()
    engine = ScriptedEngine(step_s=0)
    engine.submit(request_of("r", [9], max_tokens=3, stop=(text[-4:] + "~",)))
    assert collect(engine).run().text["r"].decode() == text


@pytest.mark.parametrize("ending", ["stop", "cancelled"])
def test_text_held_back_also_comes_with_the_end_of_script_and_an_abort(request_of, collect, ending) -> None:
    text = scripted_answer([9], 3)[1].decode()
    engine = ScriptedEngine(step_s=0, answer_tokens=3)
    engine.submit(request_of("r", [9], max_tokens=9, stop=(text[-4:] + "~",)))
    collected = collect(engine)
    for _ in range(3):
        collected.step()
    assert collected.text["r"].decode() == text[:-4]
    if ending == "cancelled":
        engine.abort("r")
    assert collected.run().reasons["r"] == [ending]
    assert collected.text["r"].decode() == text
