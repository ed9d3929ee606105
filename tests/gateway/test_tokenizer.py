"""The gateway's tokenizer, on a small one made here with a template of our own."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from sluiceway.gateway.errors import Problem
from sluiceway.gateway.tokenizer import ChatTokenizer, TokenizerError

PLAIN = "{% for each in messages %}[{{ each.role }}]{{ each.content }}{% endfor %}[assistant]"
WITH_TOOLS = "{% if tools %}<{{ tools | length }}>{% endif %}" + PLAIN
STRICT = "{{ raise_exception('roles must alternate') }}"
BROKEN = "{{ messages[0].content.nothing.at_all }}"
USER = {"role": "user", "content": "one two"}
TOOL = {"type": "function", "function": {"name": "weather"}}


def make(directory, template):
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "one": 1, "two": 2}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {"unk_token": "[UNK]"} | ({"chat_template": template} if template else {})
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return ChatTokenizer(directory)


def test_a_prompt_ends_where_the_assistant_begins(tmp_path):
    assert make(tmp_path, PLAIN).prompt([USER], None) == "[user]one two[assistant]"


def test_tools_go_where_the_template_has_a_place_for_them(tmp_path):
    assert make(tmp_path, WITH_TOOLS).prompt([USER], [TOOL]) == "<1>[user]one two[assistant]"


@pytest.mark.parametrize(
    ("template", "tools", "param", "says"),
    [
        (PLAIN, [TOOL], "tools", "no place"),
        (None, None, "messages", "no chat template"),
        (STRICT, None, "messages", "roles must alternate"),
        (BROKEN, None, "messages", "refuses"),
    ],
)
def test_what_the_template_cannot_take_is_a_400(tmp_path, template, tools, param, says):
    tokenizer = make(tmp_path, template)
    assert tokenizer.has_chat_template == (template is not None)
    with pytest.raises(Problem, match=says) as refused:
        tokenizer.prompt([USER], tools)
    assert (refused.value.status, refused.value.param) == (400, param)
    assert "one two" not in refused.value.message


def test_lengths_are_counted_from_many_threads_at_once(tmp_path):
    tokenizer = make(tmp_path, PLAIN)
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(tokenizer.count, ["one two one"] * 200)) == [3] * 200


def test_a_folder_without_a_tokenizer(tmp_path):
    with pytest.raises(TokenizerError, match=r"no tokenizer\.json"):
        ChatTokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(TokenizerError):
        ChatTokenizer(tmp_path)
