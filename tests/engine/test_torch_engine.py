from __future__ import annotations

import pytest
import torch

from sluiceway.engine.model_files import ModelLoadError
from sluiceway.engine.torch_engine import TorchEngine

PROMPTS = [[1, 2, 3], list(range(40)), [5] * 17, [9], list(range(60, 30, -1))]


@pytest.fixture
def engine(tiny_model) -> TorchEngine:
    return TorchEngine(
        tiny_model, device="cpu", kv_blocks=40, kv_block_tokens=4, max_batch_streams=4, prefill_chunk_tokens=8
    )


@pytest.fixture(scope="module")
def reference(tiny_model):
    """What transformers' own generate gives greedily."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny_model).eval()

    def generate(prompt: list[int], tokens: int) -> list[int]:
        with torch.inference_mode():
            output = model.generate(
                torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                max_new_tokens=tokens, do_sample=False, pad_token_id=0,
            )  # fmt: skip
        return output[0][len(prompt) :].tolist()

    return generate


@pytest.mark.parametrize("prompt", PROMPTS)
def test_alone_equals_transformers(engine, reference, request_of, collect, prompt) -> None:
    engine.submit(request_of("r", prompt, max_tokens=24))
    assert collect(engine).run().token_ids["r"] == reference(prompt, 24)


def test_batched_and_preempted_equals_transformers(engine, reference, request_of, collect) -> None:
    for index, prompt in enumerate(PROMPTS):
        engine.submit(request_of(str(index), prompt, max_tokens=60))
    collected = collect(engine).run()
    assert engine.statistics().recomputed_tokens > 0, "the pool was meant to be too small for all"
    for index, prompt in enumerate(PROMPTS):
        assert collected.token_ids[str(index)] == reference(prompt, 60)
    assert engine.statistics().kv_blocks_free == 40


@pytest.mark.parametrize("release", [False, True])
@pytest.mark.parametrize("at_step", [1, 3, 9])
def test_paused_and_resumed_equals_transformers(engine, reference, request_of, collect, release, at_step) -> None:
    collected = collect(engine)
    for index, prompt in enumerate(PROMPTS[:3]):
        engine.submit(request_of(str(index), prompt, max_tokens=24))
    for _ in range(at_step):
        collected.step()
    engine.pause("1")
    before = list(collected.token_ids.get("1", []))
    for _ in range(5):
        collected.step()
    if release:
        engine.release_kv("1")
        assert engine.statistics().requests["1"].kv_blocks == 0
    assert collected.token_ids.get("1", []) == before
    engine.resume("1")
    collected.run()
    assert (engine.statistics().recomputed_tokens > 0) == release
    for index, prompt in enumerate(PROMPTS[:3]):
        assert collected.token_ids[str(index)] == reference(prompt, 24)


@pytest.fixture(scope="module")
def swapping(tiny_model) -> TorchEngine:
    """Room for all on the host, few blocks a step, and freed memory on both sides full of wrong values."""
    engine = TorchEngine(
        tiny_model, device="cpu", kv_blocks=48, kv_block_tokens=4, max_batch_streams=4, prefill_chunk_tokens=8,
        host_kv_bytes=2**20,
    )  # fmt: skip
    engine._scheduler._kv.swap._per_step = 3

    @torch.inference_mode()
    def poison_pages(blocks) -> None:
        for page in engine._store.pages():
            page[list(blocks)] = 1e4

    @torch.inference_mode()
    def poison_rows(blocks) -> None:
        engine._host._rows[list(blocks)] = 1e4

    engine._scheduler.pool.on_free = poison_pages
    engine._scheduler.host_pool.on_free = poison_rows
    return engine


@pytest.mark.parametrize("seeded", [False, True])
@pytest.mark.parametrize("way", ["hold", "swap", "drop", "resumed in the middle", "dropped from the host"])
@pytest.mark.parametrize("at_step", [2, 9])
def test_every_way_to_wait_continues_alike(swapping, reference, request_of, collect, way, seeded, at_step) -> None:
    sampling = {"temperature": 1.0, "seed": 11, "top_p": 0.9, "ignore_eos": True} if seeded else {}
    if seeded:
        swapping.submit(request_of("alone", PROMPTS[1], max_tokens=40, **sampling))
        wanted = collect(swapping).run().token_ids["alone"]
    else:
        wanted = reference(PROMPTS[1], 40)
    before = swapping.statistics()
    collected = collect(swapping)
    for index, prompt in enumerate(PROMPTS[:3]):
        swapping.submit(request_of(str(index), prompt, max_tokens=40, **sampling))
    for _ in range(at_step):
        collected.step()
    swapping.pause("1")
    held = swapping.statistics().requests["1"].kv_blocks
    if way == "drop":
        swapping.release_kv("1")
    elif way != "hold":
        swapping.swap_out("1")
    for _ in range(1 if way == "resumed in the middle" else 8):
        collected.step()
    request = swapping.statistics().requests["1"]
    if way == "swap":
        assert (request.state, request.kv_blocks, request.host_blocks) == ("swapped", 0, held)
    elif way == "dropped from the host":
        swapping.release_kv("1")
        assert swapping.statistics().host_blocks_free == swapping.statistics().host_blocks_total
    swapping.resume("1")
    collected.run()
    assert collected.token_ids["1"] == wanted
    statistics = swapping.statistics()
    assert (statistics.recomputed_tokens > before.recomputed_tokens) == ("drop" in way)
    copies = (statistics.swap_outs - before.swap_outs, statistics.swap_ins - before.swap_ins)
    assert copies == {"swap": (1, 1), "dropped from the host": (1, 0)}.get(way, (0, 0))
    assert statistics.kv_blocks_free == 48
    assert statistics.host_blocks_free == statistics.host_blocks_total


def test_rates_are_measured_at_start_up(swapping, tiny_model) -> None:
    load = swapping.load()
    assert load.step_s > 0
    assert load.prefill_tokens_per_s > 0
    assert load.swap_blocks_per_s > 0
    assert load.host_blocks_free == 2**20 // (2 * 3 * 4 * 2 * 8 * 4)  # K and V, layers, tokens, heads, dim, bytes
    assert TorchEngine(tiny_model, device="cpu").load().swap_blocks_per_s == 0


def test_a_host_pool_below_one_block_is_refused(tiny_model) -> None:
    with pytest.raises(ValueError, match=r"host_kv_bytes is 100, less than one KV block of \d+ bytes"):
        TorchEngine(tiny_model, device="cpu", host_kv_bytes=100)


@pytest.mark.parametrize("state", ["waiting", "prefill", "running", "paused"])
def test_abort_frees_blocks_at_once(engine, request_of, collect, state) -> None:
    collected = collect(engine)
    engine.submit(request_of("r", list(range(40)), max_tokens=50))
    steps = {"waiting": 0, "prefill": 2, "running": 8, "paused": 8}[state]
    for _ in range(steps):
        collected.step()
    if state == "paused":
        engine.pause("r")
    assert engine.statistics().requests["r"].state == state
    assert engine.abort("r")
    assert engine.statistics().kv_blocks_free == 40
    assert not engine.abort("r")
    collected.run()
    assert collected.reasons == {"r": ["cancelled"]}
    assert engine.statistics().aborts == 1


def test_end_of_sequence_stops_unless_told_otherwise(engine, reference, request_of, collect) -> None:
    prompt = PROMPTS[1]
    greedy = reference(prompt, 12)
    engine._eos_token_ids = frozenset({greedy[4]})
    first = greedy.index(greedy[4]) + 1
    engine.submit(request_of("ends", prompt, max_tokens=12))
    engine.submit(request_of("ignores", prompt, max_tokens=12, ignore_eos=True))
    engine.submit(request_of("at least", prompt, max_tokens=12, min_tokens=8))
    collected = collect(engine).run()
    assert collected.token_ids["ends"] == greedy[:first]
    assert collected.reasons["ends"] == ["stop"]
    assert collected.token_ids["ignores"] == greedy
    assert len(collected.token_ids["at least"]) >= 8
    assert greedy[4] not in collected.token_ids["at least"][:8]


def test_a_seed_repeats_an_answer_whatever_runs_beside_it(engine, request_of, collect) -> None:
    engine.submit(request_of("a", [4, 5], max_tokens=16, temperature=1.0, seed=3))
    collected = collect(engine).run()
    engine.submit(request_of("b", [4, 5], max_tokens=16, temperature=1.0, seed=3))
    engine.submit(request_of("c", [6, 7], max_tokens=16, temperature=1.0, top_p=0.5))
    collected.run()
    assert collected.token_ids["a"] == collected.token_ids["b"]


def test_text_equals_the_tokenizers(engine, request_of, collect) -> None:
    engine.submit(request_of("r", engine.encode("the café 😀"), max_tokens=40))
    collected = collect(engine).run()
    expected = engine.tokenizer.decode(collected.token_ids["r"], skip_special_tokens=True)
    assert collected.text["r"].decode(errors="replace") == expected


def test_the_context_ends_an_answer(tiny_model, request_of, collect) -> None:
    engine = TorchEngine(tiny_model, device="cpu", kv_blocks=5, kv_block_tokens=4)
    assert engine.context_tokens == 20
    engine.submit(request_of("r", [1, 2], max_tokens=1000, ignore_eos=True))
    collected = collect(engine).run()
    assert len(collected.token_ids["r"]) == 18
    assert collected.reasons["r"] == ["length"]


def test_a_sliding_window_is_seen(tmp_path, tiny_model, request_of, collect) -> None:
    from transformers import AutoModelForCausalLM, MistralConfig, MistralForCausalLM

    torch.manual_seed(3)
    config = MistralConfig(
        vocab_size=272, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, sliding_window=6, eos_token_id=271, initializer_range=0.5,
    )  # fmt: skip
    MistralForCausalLM(config).save_pretrained(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((tiny_model / name).read_bytes())
    engine = TorchEngine(tmp_path, device="cpu", prefill_chunk_tokens=8)
    engine.submit(request_of("r", range(20), max_tokens=20, ignore_eos=True))
    got = collect(engine).run().token_ids["r"]
    model = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager").eval()
    token_ids = list(range(20))
    with torch.inference_mode():
        for _ in range(20):
            token_ids.append(int(model(torch.tensor([token_ids]), use_cache=False).logits[0, -1].argmax()))
    assert got == token_ids[20:]


def test_a_directory_without_a_model_is_named(tmp_path, tiny_model) -> None:
    with pytest.raises(ModelLoadError, match=r"nowhere: no such directory"):
        TorchEngine(tmp_path / "nowhere")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelLoadError, match=rf"{tmp_path}: no weights"):
        TorchEngine(tmp_path)
    (tmp_path / "model.safetensors").write_bytes((tiny_model / "model.safetensors").read_bytes())
    with pytest.raises(ModelLoadError, match=r"no tokenizer\.json"):
        TorchEngine(tmp_path)
    (tmp_path / "tokenizer.json").write_bytes((tiny_model / "tokenizer.json").read_bytes())
    with pytest.raises(ModelLoadError, match=str(tmp_path)):
        TorchEngine(tmp_path)
