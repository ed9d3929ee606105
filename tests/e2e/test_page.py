"""The page in a real Chromium, through the real Envoy, gateway and Triton."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from playwright.sync_api import expect, sync_playwright

from e2e.inference import wait_for
from sluiceway.cli.setup import REPOSITORY
from sluiceway.cli.stack import Stack, StackSettings

pytestmark = pytest.mark.e2e

BROWSER = Path(os.environ.get("SLUICEWAY_TOOLS") or REPOSITORY / ".tools") / "browser" / "chromium"
# As for a container: no sandbox (root), no GPU, and none of its own traffic.
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-quic",
]
CONFIG = {"engine": {"kind": "scripted", "step_s": 0.02, "kv_blocks": 4096}}
LONG = 3000
TIMEOUT_MS = 20_000


@pytest.fixture(scope="module")
def stack(tmp_path_factory):
    with Stack(StackSettings(run_dir=tmp_path_factory.mktemp("page"), config=CONFIG, gateway=True)) as running:
        yield running


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=BROWSER, args=ARGUMENTS, headless=True)
        yield chromium
        chromium.close()


@pytest.fixture
def page(stack, browser):
    """The page, loaded; a message on its console, or a request to another host, fails the test."""
    context = browser.new_context(viewport={"width": 900, "height": 1100}, color_scheme="light")
    page = context.new_page()
    page.set_default_timeout(TIMEOUT_MS)
    said, hosts = [], set()
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: hosts.add(re.sub(r"^\w+://([^/]*)/.*", r"\1", request.url)))
    page.goto(f"http://127.0.0.1:{stack.ports.envoy}/")
    yield page
    context.close()
    assert said == []
    assert hosts <= {f"127.0.0.1:{stack.ports.envoy}"}


def ask(page, tokens, prompt="river"):
    page.get_by_label("Your message").fill(prompt)
    page.get_by_label("At most").fill(str(tokens))
    page.get_by_role("button", name="Send").click()


def read(page, frames_a_second):
    slider = page.get_by_label("Frames a second")
    slider.fill(str(frames_a_second))


def streams(stack):
    return stack.statistics()["streams"]


def state(page):
    return page.locator("#state")


def gone(stack):
    wait_for(lambda: not streams(stack), what="the stream is gone")


def test_an_answer_streams_into_the_page(stack, page):
    ask(page, 40)
    expect(page.locator("#end")).to_contain_text(re.compile(r"Finished: (length|stop), \d+ tokens"), timeout=TIMEOUT_MS)
    assert len(page.locator("#answer").inner_text()) > 40
    expect(page.get_by_role("button", name="Send")).to_be_enabled()
    gone(stack)


def test_who_stops_reading_sees_the_pause_and_loses_nothing(stack, page):
    ask(page, LONG)
    expect(page.locator("#answer")).to_contain_text(re.compile(r"\w{3}.{400}"), timeout=TIMEOUT_MS)
    read(page, 0)
    expect(state(page)).to_have_text("paused", timeout=TIMEOUT_MS)
    expect(page.locator("#speed-text")).to_have_text("not reading")
    consumed = page.locator("#level-consumed .count")
    shown = consumed.inner_text()
    assert [stream["state"] for stream in streams(stack)] == ["paused"]
    produced = streams(stack)[0]["produced"]["tokens"]
    assert produced < LONG / 3
    if "SLUICEWAY_SCREENSHOT" in os.environ:
        page.screenshot(path=Path(os.environ["SLUICEWAY_SCREENSHOT"]))
    page.wait_for_timeout(1500)
    assert consumed.inner_text() == shown
    assert streams(stack)[0]["produced"]["tokens"] == produced
    read(page, 41)
    expect(state(page)).to_have_text("streaming", timeout=TIMEOUT_MS)
    page.get_by_role("button", name="Stop").click()
    expect(page.locator("#end")).to_contain_text("Finished: cancelled", timeout=TIMEOUT_MS)
    text = page.locator("#answer").text_content()
    assert text
    gone(stack)


def test_a_slow_reader_reads_at_its_pace(stack, page):
    read(page, 5)
    ask(page, LONG)
    consumed = page.locator("#level-consumed .count")
    expect(consumed).not_to_have_text("0", timeout=TIMEOUT_MS)
    wait_for(lambda: streams(stack)[0]["state"] == "paused", what="the stream is paused", timeout_s=30)
    page.get_by_role("button", name="Stop").click()
    gone(stack)


def test_a_page_that_is_closed_ends_its_stream(stack, page):
    ask(page, LONG)
    wait_for(lambda: streams(stack), what="the stream runs")
    page.goto("about:blank")
    gone(stack)


@pytest.mark.parametrize(("words", "why"), [(20_000, "tokens"), (60_000, "too large")])
def test_a_refusal_is_shown(page, words, why):
    ask(page, 1000, "river " * words)
    expect(page.locator("#end")).to_contain_text(re.compile(f"Refused: .*{why}"), timeout=TIMEOUT_MS)
    expect(page.get_by_role("button", name="Send")).to_be_enabled()


def test_everything_can_be_done_from_the_keyboard(stack, page):
    page.get_by_label("Your message").focus()
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Send")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#answer")).not_to_be_empty(timeout=TIMEOUT_MS)
    expect(page.get_by_role("button", name="Stop")).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.get_by_label("Frames a second")).to_be_focused()
    page.keyboard.press("Home")
    expect(page.locator("#speed-text")).to_have_text("not reading")
    page.keyboard.press("End")
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
    expect(page.locator("#end")).to_contain_text("Finished: cancelled", timeout=TIMEOUT_MS)
    gone(stack)
    expect(page.get_by_role("button", name="Send")).to_be_focused()
