from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluiceway.engine.protocol import SamplingParams
from sluiceway.runtime.errors import RequestError
from sluiceway.runtime.sampling import ACCEPTS, parse_sampling

LIMIT = 1000


def parse(value):
    return parse_sampling(value if isinstance(value, bytes) else json.dumps(value).encode(), LIMIT)


def message(value):
    with pytest.raises(RequestError) as caught:
        parse(value)
    assert caught.value.code == "INVALID_ARG"
    return str(caught.value)


def test_nothing_sent_means_defaults():
    assert parse_sampling(None, LIMIT) == parse_sampling(b"", LIMIT) == parse({}) == SamplingParams()


def test_everything_is_understood():
    given_values = {
        "max_tokens": 1000,
        "min_tokens": 3,
        "temperature": 0,
        "top_k": -1,
        "top_p": 1,
        "seed": 7,
        "stop": ["a", "bc"],
        "ignore_eos": True,
    }
    assert set(given_values) == set(ACCEPTS)
    assert parse(given_values) == SamplingParams(
        max_tokens=1000,
        min_tokens=3,
        temperature=0.0,
        top_k=0,
        top_p=1.0,
        seed=7,
        stop=("a", "bc"),
        ignore_eos=True,
    )


def test_one_stop_string_may_come_alone():
    assert parse({"stop": "end"}).stop == ("end",)
    assert parse({"stop": None}).stop == ()


@pytest.mark.parametrize(
    ("field", "value", "got"),
    [
        ("max_tokens", 0, "0"),
        ("max_tokens", -1, "-1"),
        ("max_tokens", 1001, "1001"),
        ("max_tokens", 10**30, "an integer of over 20 digits"),
        ("max_tokens", True, "true"),
        ("max_tokens", 2.0, "2.0"),
        ("max_tokens", "5", "a string of 1 characters"),
        ("max_tokens", None, "null"),
        ("min_tokens", -1, "-1"),
        ("temperature", -0.1, "-0.1"),
        ("temperature", 10.5, "10.5"),
        ("temperature", True, "true"),
        ("temperature", "secret words", "a string of 12 characters"),
        ("top_k", -2, "-2"),
        ("top_k", 1_000_001, "1000001"),
        ("top_p", 0, "0"),
        ("top_p", 1.01, "1.01"),
        ("seed", -1, "-1"),
        ("seed", 2**63, str(2**63)),
        ("stop", "", "a string of 0 characters"),
        ("stop", ["a"] * 17, "a list of 17"),
        ("stop", ["a", ""], "a list of 2"),
        ("stop", [1], "a list of 1"),
        ("stop", {"a": 1}, "an object of 1 keys"),
        ("ignore_eos", 1, "1"),
    ],
)
def test_wrong_values_name_field_kind_and_limit(field, value, got):
    accepts = ACCEPTS[field].format(max_tokens=LIMIT)
    assert message({field: value}) == f"sampling_parameters.{field}: must be {accepts}, got {got}"


def test_min_tokens_above_max_tokens():
    assert message({"min_tokens": 17}) == "sampling_parameters.min_tokens: must be at most max_tokens (16), got 17"


def test_unknown_keys_name_the_closest_known_ones():
    assert message({"temprature": 1}) == "sampling_parameters: unknown key 'temprature'; did you mean temperature?"
    assert "known: max_tokens, min_tokens" in message({"x": 1})


def test_the_unknown_key_is_named_before_a_wrong_value():
    assert "unknown key 'max_token'" in message({"temperature": -1, "max_token": 5})


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"{", "not JSON at character 1"),
        (b"\xff", "not UTF-8 at byte 0"),
        (b"[]", "must be a JSON object, got a list of 0"),
        (b"3", "must be a JSON object, got 3"),
        (b'{"seed": 1, "seed": 2}', "the key 'seed' is given twice"),
        (b'{"temperature": NaN}', "NaN is not a JSON number"),
        (b'{"temperature": Infinity}', "Infinity is not a JSON number"),
        (b'{"temperature": 1e999}', "sampling_parameters.temperature: must be a number from 0 to 10"),
        (b"[" * 60_000, "nesting too large"),
        (b'{"seed": ' + b"9" * 5000 + b"}", "numbers or nesting too large"),
        (b" " * 70_000, "70000 bytes, at most 65536"),
    ],
)
def test_what_is_no_json_object(raw, expected):
    assert expected in message(raw)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(sorted(ACCEPTS)) | st.text(max_size=5), json_values, max_size=4))
def test_any_object_is_understood_or_refused(value):
    try:
        sampling = parse(value)
    except RequestError:
        return
    assert 1 <= sampling.max_tokens <= LIMIT
    assert 0 <= sampling.min_tokens <= sampling.max_tokens


@given(st.binary(max_size=60))
def test_any_bytes_are_understood_or_refused(raw):
    with contextlib.suppress(RequestError):
        parse(raw)
