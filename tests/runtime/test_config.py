from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sluiceway.core.limits import CushionLimits, Limits, Size
from sluiceway.core.policy_settings import PolicySettings
from sluiceway.runtime.config import Config, model_dir
from sluiceway.runtime.config_file import load_config
from sluiceway.runtime.engines import build_engine
from sluiceway.runtime.errors import ConfigError

SHIPPED = Path(__file__).parents[2] / "model_repository" / "llm" / "sluiceway.yaml"


def write(tmp_path, text):
    path = tmp_path / "sluiceway.yaml"
    path.write_text(text)
    return path


def complaint(tmp_path, text):
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    return str(caught.value).replace(f"{path}:", "", 1)


def test_the_shipped_file_holds_the_defaults():
    """Its comments say why; the code's defaults must not tell another story."""
    shipped = load_config(SHIPPED)
    assert shipped.model_copy(update={"engine": Config().engine}) == Config()
    assert replace(shipped.limits(110), max_backlog_bytes=None) == Limits()


def test_a_cushion_may_be_left_out_or_set_in_part(tmp_path):
    assert load_config(write(tmp_path, "flow_control: {cushion: null}")).limits(110).cushion is None
    cushion = load_config(write(tmp_path, "flow_control: {cushion: {high_s: 8.0}}")).limits(110).cushion
    assert cushion == CushionLimits(high_s=8.0)
    text = "flow_control:\n  cushion: {low_s: 5.0}"
    assert complaint(tmp_path, text) == "2: flow_control.cushion: low_s (5.0) must not be above high_s (4.0)"


def test_an_empty_file_is_all_defaults(tmp_path):
    assert load_config(write(tmp_path, "")) == Config()


def test_sections_fill_up_with_defaults(tmp_path):
    config = load_config(write(tmp_path, "engine: {kind: scripted}\nflow_control: {mode: run_to_completion}"))
    limits = config.limits(120)
    assert (config.engine.kind, config.pump.workers) == ("scripted", 4)
    assert (limits.pausing, limits.max_backlog_bytes, limits.frame_overhead_bytes) == (False, 2**20, 120)
    assert limits.window == Size(bytes=16384, tokens=4096, frames=64)


@pytest.mark.parametrize(
    ("text", "mode", "buffer_aware", "reclaim"),
    [
        ("", "cost", True, "any"),
        ("policy: {mode: hold}", "hold", False, "none"),
        ("policy: {mode: drop}", "drop", False, "any"),
        ("flow_control: {mode: run_to_completion}", "hold", False, "any"),
        ("policy: {mode: hold}\nengine: {buffer_aware: true, reclaim: any}", "hold", True, "any"),
    ],
)
def test_each_arm_has_its_policy_and_its_scheduling(tmp_path, text, mode, buffer_aware, reclaim):
    config = load_config(write(tmp_path, text))
    engine = config.engine_settings()
    assert (config.policy_mode, engine.buffer_aware, engine.reclaim) == (mode, buffer_aware, reclaim)


def test_the_policys_settings_are_the_cores(tmp_path):
    assert Config().policy.settings() == PolicySettings()
    changed = load_config(write(tmp_path, "policy: {grace_s: [5.0, 30.0], max_silence_s: [9.0], margin: 0.5}"))
    settings = changed.policy.settings()
    assert (settings.grace(0), settings.grace(1), settings.max_silence(3), settings.margin) == (5.0, 30.0, 9.0, 0.5)


def test_answers_are_replaced_only_where_a_deployment_says_so(tmp_path):
    assert Config().limits(110).degrade_after_s is None
    assert load_config(write(tmp_path, "degraded: {enabled: true, after_s: 7.0}")).limits(110).degrade_after_s == 7.0


def test_what_the_engine_does_not_take_is_a_wrong_setting(tmp_path):
    config = load_config(write(tmp_path, "engine: {kind: scripted, host_kv_bytes: 100}"))
    with pytest.raises(ConfigError, match=r"engine: .*host_kv_bytes"):
        build_engine(config.engine_settings(), None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("pump:\n  worker: 4", "2: pump.worker: unknown setting; did you mean workers?"),
        ("spool:\n  redis:\n    urll: x", "3: spool.redis.urll: unknown setting; did you mean url?"),
        (
            "spool:\n  redis:\n    url: http://:secret@host",
            "3: spool.redis.url: must begin with redis://, rediss:// or unix://",
        ),
        (
            "spool:\n  max_stream_bytes: 100\n  retained_bytes: 0",
            "1: the file: spool.max_stream_bytes (100) does not hold one frame of flow_control.max_frame_bytes",
        ),
        (
            "spool:\n  max_stream_bytes: 9000\n  retained_bytes: 0",
            "1: the file: spool.max_stream_bytes (9000) must be at least",
        ),
        (
            "spool:\n  max_bytes: 1048577\n  max_tenant_bytes: 1048578",
            "1: spool: max_tenant_bytes (1048578) must not be above max_bytes (1048577)",
        ),
        ("zzz: 1", "1: zzz: unknown setting; known: engine, flow_control"),
        ("engine:\n  kind: scripted\n\n  kv_blocks: many", "4: engine.kv_blocks: input should be a valid integer"),
        ("engine:\n  kv_blocks: 0", "2: engine.kv_blocks: input should be greater than or equal to 1, got 0"),
        ("engine:\n  kv_blocks: true", "2: engine.kv_blocks: input should be a valid integer, got true"),
        (
            "engine:\n  kind: vllm",
            "2: engine.kind: input should be 'torch' or 'scripted', got a string of 4 characters",
        ),
        ("policy:\n  mode: ladder", "2: policy.mode: input should be 'cost', 'hold' or 'drop'"),
        ("policy:\n  grace_s: [9.0, 5.0]", "1: policy: grace_s ([9.0, 5.0]) must not fall from tier to tier"),
        ("policy:\n  margin: 1.5", "2: policy.margin: input should be less than or equal to 1, got 1.5"),
        (
            "degraded: {enabled: true, after_s: 60.0}",
            "degraded.after_s (60.0) must be below flow_control.max_silence_s (60.0)",
        ),
        ("pump:\n  slow_send_s: .inf", "2: pump.slow_send_s"),
        ("flow_control:\n  low: {bytes: 5, tokens: 5}", "2: flow_control.low.frames: field required"),
        (
            "flow_control:\n  low: {bytes: 20000, tokens: 64, frames: 24}",
            "1: flow_control: low.bytes (20000) must not be above high.bytes (16384)",
        ),
        (
            "flow_control:\n  window: {bytes: 65536, tokens: 64, frames: 24}",
            "1: flow_control: window.bytes (65536) must be at most 49152",
        ),
        ("flow_control:\n  max_frame_bytes: 20000", "max_frame_bytes (20000) must be at most window.bytes (16384)"),
        ("delivery:\n  listen: somewhere", "2: delivery.listen: string should match pattern"),
        ("admin: 5", "1: admin: input should be a valid dictionary or instance of AdminConfig, got 5"),
        ("- 1", "1: the file: input should be a valid dictionary or instance of Config, got a list of 1"),
        ("pump:\n  workers: 4\n  workers: 5", "3: pump.workers: given twice"),
        ("a: [", "not YAML"),
    ],
)
def test_a_complaint_names_line_field_and_limit(tmp_path, text, expected):
    assert expected in complaint(tmp_path, text)


def test_every_wrong_line_is_named(tmp_path):
    problems = complaint(tmp_path, "engine:\n  kv_blocks: 0\npump:\n  workers: 99").splitlines()
    assert len(problems) == 2


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match=r"missing\.yaml: cannot be read"):
        load_config(tmp_path / "missing.yaml")


def test_the_model_directory_starts_at_the_file(tmp_path):
    config = Config.model_validate({"engine": {"model_dir": "../weights"}})
    assert model_dir(config, tmp_path / "a" / "sluiceway.yaml", None) == tmp_path / "weights"
    assert model_dir(config, tmp_path / "a" / "sluiceway.yaml", "/else/where") == Path("/else/where")
    assert model_dir(Config(), tmp_path / "sluiceway.yaml", None) is None


def test_the_url_of_redis_may_hold_a_password_and_is_never_shown(tmp_path):
    config = load_config(write(tmp_path, "spool: {redis: {url: 'redis://:secret@host:6379/0'}}"))
    assert config.spool.redis.url.get_secret_value().endswith("host:6379/0")
    assert "secret" not in repr(config) + str(config.model_dump())
