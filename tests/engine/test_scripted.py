from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluiceway.core.events import FinishReason
from sluiceway.engine.protocol import EngineRequest, SamplingParams
from sluiceway.engine.scripted import Script, ScriptedEngine, scripted_answer


def make(script: Script = "ascii", kv_blocks: int = 8, batch: int = 3) -> ScriptedEngine:
    return ScriptedEngine(
        step_s=0,
        script=script,
        kv_blocks=kv_blocks,
        kv_block_tokens=4,
        max_batch_streams=batch,
        prefill_chunk_tokens=5,
    )


def request(request_id: str, prompt: int = 3, **sampling: object) -> EngineRequest:
    ids = tuple(range(prompt))
    return EngineRequest(request_id=request_id, prompt_token_ids=ids, sampling=SamplingParams(**sampling))  # type: ignore[arg-type]


def run(engine: ScriptedEngine) -> tuple[dict[str, list[int]], dict[str, bytes], dict[str, list[FinishReason]]]:
    ids: dict[str, list[int]] = defaultdict(list)
    texts: dict[str, bytes] = defaultdict(bytes)
    ends: dict[str, list[FinishReason]] = defaultdict(list)
    for _ in range(2000):
        if not engine.has_work():
            return ids, texts, ends
        for event in engine.step():
            ids[event.request_id] += event.token_ids
            texts[event.request_id] += event.text
            if event.finish_reason:
                ends[event.request_id].append(event.finish_reason)
    raise AssertionError("no end in 2000 steps")


@pytest.mark.parametrize("script", ["ascii", "unicode"])
def test_the_answer_is_the_script_with_full_kv_too(script: Script) -> None:
    engine = make(script, kv_blocks=4)
    for number in range(1, 6):
        engine.submit(request(str(number), number, max_tokens=9))
    ids, texts, ends = run(engine)
    for number in range(1, 6):
        expected_ids, expected = scripted_answer(range(number), 9, script)
        assert (ids[str(number)], texts[str(number)]) == (expected_ids, expected)
        assert ends[str(number)] == [FinishReason.LENGTH]
    assert engine.statistics().recomputed_tokens > 0
    assert engine.statistics().kv_blocks_free == 4


def test_unicode_tokens_cut_characters_and_the_whole_is_valid() -> None:
    ids, text = scripted_answer((1, 2, 3), 800, "unicode")
    shown = text.decode()
    assert all(part in shown for part in ("水", "👩‍👩‍👧‍👦", "🇯🇵", "e\u0301"))
    assert len(set(ids)) == 80
    lengths = [len(scripted_answer((1, 2, 3), n, "unicode")[1]) for n in range(80)]
    cut = 0
    for length in lengths:
        try:
            text[:length].decode()
        except UnicodeDecodeError:
            cut += 1
    assert cut > 20


def test_stop_string_across_tokens_ends_the_answer_after_min_tokens() -> None:
    _, text = scripted_answer(range(3), 12)
    stop = text[20:24].decode()
    engine = make()
    engine.submit(request("stopped", max_tokens=12, stop=(stop,)))
    engine.submit(request("too early", max_tokens=12, min_tokens=12, stop=(stop,)))
    _, texts, ends = run(engine)
    assert texts["stopped"] == text[: text.find(stop.encode())]
    assert ends["stopped"] == [FinishReason.STOP]
    assert texts["too early"] == text
    assert ends["too early"] == [FinishReason.LENGTH]


def test_a_step_takes_what_is_left_of_step_s_and_an_idle_one_nothing() -> None:
    slept: list[float] = []
    engine = ScriptedEngine(step_s=50.0, sleep=slept.append)
    assert engine.step() == []
    engine.submit(request("a", max_tokens=2))
    run(engine)
    assert len(slept) == 2
    assert all(0 < seconds <= 50 for seconds in slept)


def test_what_cannot_run_is_refused_and_leaves_nothing_behind() -> None:
    engine = make(kv_blocks=2)
    with pytest.raises(ValueError, match="prompt"):
        engine.submit(request("long", 9))
    with pytest.raises(ValueError, match="max_tokens"):
        engine.submit(request("none", max_tokens=0))
    assert not engine.has_work()
    assert not engine.abort("long")


OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["submit", "pause", "resume", "release_kv", "abort", "step", "step"]), st.integers(0, 5)),
    max_size=60,
)


@given(OPERATIONS, st.sampled_from(["ascii", "unicode"]))
@settings(deadline=None)
def test_any_interleaving_ends_each_request_once_with_the_scripts_text(
    operations: list[tuple[str, int]], script: Script
) -> None:
    engine = make(script, kv_blocks=5, batch=2)
    texts: dict[str, bytes] = {}
    ends: dict[str, FinishReason] = {}

    def step() -> None:
        seen = set()
        for event in engine.step():
            assert event.request_id not in ends
            texts[event.request_id] += event.text
            if event.token_ids:
                assert len(event.token_ids) == 1
                assert event.request_id not in seen
                seen.add(event.request_id)
            if event.finish_reason:
                ends[event.request_id] = event.finish_reason
        assert len(seen) <= 2
        statistics = engine.statistics()
        assert sum(r.kv_blocks for r in statistics.requests.values()) == 5 - statistics.kv_blocks_free

    for name, number in operations:
        request_id = str(number)
        if name == "step":
            step()
        elif name == "submit":
            if request_id not in texts:
                texts[request_id] = b""
                engine.submit(request(request_id, 1 + number, max_tokens=3 + 2 * number))
        elif name == "abort":
            is_open = request_id in engine.statistics().requests
            assert engine.abort(request_id) == is_open
            assert request_id not in engine.statistics().requests
        else:
            getattr(engine, name)(request_id)
    for request_id in texts:
        engine.resume(request_id)
    for _ in range(400):
        if engine.has_work():
            step()
    assert set(ends) == set(texts)
    for request_id, text in texts.items():
        number = int(request_id)
        expected = scripted_answer(range(1 + number), 3 + 2 * number, script)[1]
        cancelled = ends[request_id] is FinishReason.CANCELLED
        assert expected.startswith(text) if cancelled else text == expected
    assert engine.statistics().kv_blocks_free == 5
