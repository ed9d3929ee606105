"""Tool calls come out of an answer's text the same however it was cut."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluiceway.gateway.openai import tool_calls
from sluiceway.gateway.openai.tool_calls import Call, ToolCallParser

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>'
KOELN = Call("weather", '{"city": "Köln"}')
PIECES = st.sampled_from(
    [
        CALL,
        "<tool_call>",
        "</tool_call>",
        "<tool_call>not json</tool_call>",
        '<tool_call>{"name": "f", "arguments": "{\\"a\\":1}"}</tool_call>',
        '<tool_call>{"name": "<tool_call>", "arguments": {}}</tool_call>',
        "<",
        "<tool",
        "<<tool_call>",
        "\n",
        "text ü",
        "🙂",
    ]
)


def joined(parts):
    """Neighbouring texts as one."""
    result = []
    for part in parts:
        if isinstance(part, str) and result and isinstance(result[-1], str):
            result[-1] += part
        else:
            result.append(part)
    return result


def parsed(pieces):
    parser = ToolCallParser()
    parts = [part for piece in pieces for part in parser.feed(piece)]
    return joined(parts + parser.finish())


@st.composite
def cut_texts(draw):
    text = "".join(draw(st.lists(PIECES, max_size=8)))
    cuts = sorted(draw(st.sets(st.integers(0, len(text)))))
    return text, [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@given(cut_texts())
def test_any_split_gives_the_same(case):
    text, pieces = case
    assert parsed(pieces) == parsed([text]) == parsed(list(text))


@given(st.text(alphabet="<tol_ca>/\n x", max_size=60))
def test_text_without_a_call_comes_out_unchanged(text):
    assert parsed(list(text)) == ([text] if text else [])


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (CALL, [KOELN]),
        (f"I look.\n{CALL}\n\n{CALL}\nDone", ["I look.\n", KOELN, KOELN, "Done"]),
        ('<tool_call>{"name": "f"}</tool_call>', [Call("f", "{}")]),
        ('<tool_call>{"name": "f", "arguments": "{}"}</tool_call>', [Call("f", "{}")]),
        (
            '<tool_call>{"name": 1, "arguments": {}}</tool_call>x',
            ['<tool_call>{"name": 1, "arguments": {}}</tool_call>x'],
        ),
        ("<tool_call>[1]</tool_call>", ["<tool_call>[1]</tool_call>"]),
        (f"{CALL[:-1]}", [CALL[:-1]]),
        ('<tool_call>{"name": "f", "arguments": {"a": "\\ud83d"}}</tool_call>', None),
    ],
)
def test_calls_and_texts_in_order(text, parts):
    assert parsed([text]) == ([text] if parts is None else parts)


def test_text_is_not_held_back_longer_than_it_may_begin_a_call():
    parser = ToolCallParser()
    assert parser.feed("abc<tool") == ["abc"]
    assert parser.feed("box>") == ["<toolbox>"]


def test_a_call_without_end_is_text_once_it_is_too_long(monkeypatch):
    monkeypatch.setattr(tool_calls, "MAX_CALL_CHARACTERS", 20)
    text = "<tool_call>" + "x" * 40 + CALL
    assert parsed([text]) == parsed(list(text)) == ["<tool_call>" + "x" * 40 + CALL]
    assert parsed(["<tool_call>" + "x" * 9 + "</tool_call>"]) == ["<tool_call>" + "x" * 9 + "</tool_call>"]


def test_arguments_are_json():
    (call,) = parsed(['<tool_call>{"name": "f", "arguments": {"a": [1, null, "ü"]}}</tool_call>'])
    assert json.loads(call.arguments) == {"a": [1, None, "ü"]}
