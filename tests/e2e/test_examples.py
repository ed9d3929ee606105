"""The examples, run as a stranger would."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sluiceway.cli.setup import REPOSITORY
from sluiceway.cli.stack import Stack, StackSettings
from sluiceway.gateway.settings import load_gateway_settings

pytestmark = pytest.mark.e2e

EXAMPLES = REPOSITORY / "examples"
CONFIG = {"engine": {"kind": "scripted", "step_s": 0.005}}
PYTHON_EXAMPLES = ("generate.py", "client_with_acks.py", "openai_chat.py")


@pytest.fixture(scope="module")
def stack(tmp_path_factory):
    with Stack(StackSettings(run_dir=tmp_path_factory.mktemp("examples"), config=CONFIG, gateway=True)) as running:
        yield running


def run(stack, *command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", PYTHON_EXAMPLES)
def test_a_python_example_prints_an_answer(stack, name):
    said = run(stack, sys.executable, str(EXAMPLES / name), "river", f"127.0.0.1:{stack.ports.envoy}")
    assert len(said.split()) > 20


def test_curl_gets_all_three_answers(stack):
    said = run(stack, "sh", str(EXAMPLES / "curl.sh"), f"127.0.0.1:{stack.ports.envoy}")
    assert "data: [DONE]" in said
    assert '"object":"text_completion"' in said
    assert '"text_output":"' in said
    assert "error" not in said


def test_the_settings_are_the_defaults_written_out():
    settings = load_gateway_settings(EXAMPLES / "gateway.yaml")
    assert settings.model_copy(update={"model_dir": None}) == type(settings)()
    assert settings.model_dir.endswith(".models/smollm2")


def test_every_example_is_run_here():
    assert {path.name for path in EXAMPLES.glob("*.*")} == {*PYTHON_EXAMPLES, "curl.sh", "gateway.yaml"}
