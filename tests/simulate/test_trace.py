"""A trace is drawn the same way twice, and a file says in which line it is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluiceway.cli.simulate.trace import ARRIVALS, BURST_STREAMS, Arrival, Reader, TraceError, draw, read, write

HEADER = "arrival_s,prompt_tokens,output_tokens,reader,leaves_after_s,tenant,tier\n"
ONE = '{"arrival_s": 1, "prompt_tokens": 1, "output_tokens": 1}'


def test_same_seed_same_trace_and_another_seed_another() -> None:
    assert draw(streams=50, per_s=5, slow=0.5, seed=3) == draw(streams=50, per_s=5, slow=0.5, seed=3)
    assert draw(streams=50, per_s=5, slow=0.5, seed=3) != draw(streams=50, per_s=5, slow=0.5, seed=4)


@given(low=st.integers(0, 40), more=st.integers(0, 40))
def test_a_larger_share_of_slow_readers_changes_who_is_slow_and_nothing_else(low: int, more: int) -> None:
    few, many = (draw(streams=40, per_s=5, slow=count / 40) for count in sorted((low, more)))
    assert sum(arrival.is_slow for arrival in few) == min(low, more)
    for one, other in zip(few, many, strict=True):
        assert (one.arrival_s, one.prompt_tokens, one.output_tokens) == (
            other.arrival_s,
            other.prompt_tokens,
            other.output_tokens,
        )
        if one.is_slow:
            assert one == other


@pytest.mark.parametrize("name", ARRIVALS)
def test_arrivals_come_in_order_at_about_the_asked_rate(name: str) -> None:
    times = [arrival.arrival_s for arrival in draw(streams=2000, per_s=20, arrivals=name)]
    assert times == sorted(times)
    assert 80 < times[-1] < 120


def test_bursts_arrive_together() -> None:
    times = [arrival.arrival_s for arrival in draw(streams=100, per_s=20, arrivals="bursty")]
    assert len(set(times)) == 100 // BURST_STREAMS


def test_lengths_by_name() -> None:
    assert {arrival.output_tokens for arrival in draw(streams=9, per_s=1, outputs="fixed:2000")} == {2000}
    drawn = sorted(arrival.output_tokens for arrival in draw(streams=2001, per_s=1, outputs="lognormal:500:0.5"))
    assert 450 < drawn[1000] < 550
    assert drawn[-1] <= 5000


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"streams": 0}, "streams"), ({"per_s": 0}, "per_s"), ({"slow": 1.5}, "slow"), ({"leaving": -1}, "leaving"),
        ({"arrivals": "daily"}, "arrivals"), ({"outputs": "fixed:0"}, "fixed:0"), ({"prompts": "chat:3"}, "chat:3"),
        ({"outputs": "lognormal:x:1"}, "lognormal"), ({"slow_readers": ["sometimes"]}, "sometimes"),
    ],
)  # fmt: skip
def test_what_makes_no_trace_is_named(wrong: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        draw(**{"streams": 10, "per_s": 1.0} | wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["normal", "never", "rate:2000", "stop:0", "stop:8192"])
def test_readers_that_there_are(text: str) -> None:
    assert Reader.parse(text).kind == text.partition(":")[0]


@pytest.mark.parametrize(
    "text", ["", "fast", "rate", "rate:0", "rate:-1", "rate:nan", "stop:-1", "normal:3", "rate:inf"]
)
def test_readers_that_there_are_not(text: str) -> None:
    with pytest.raises(ValueError, match="reader"):
        Reader.parse(text)


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_what_was_written_is_read(tmp_path: Path, suffix: str) -> None:
    trace = draw(streams=30, per_s=3, slow=0.5)
    path = tmp_path / f"trace{suffix}"
    if suffix == ".jsonl":
        write(path, trace)
    else:
        rows = (
            f"{each.arrival_s!r},{each.prompt_tokens},{each.output_tokens},{each.reader},"
            f"{'' if each.leaves_after_s is None else repr(each.leaves_after_s)},{each.tenant},{each.tier}\n"
            for each in trace
        )
        path.write_text(HEADER + "".join(rows))
    assert read(path) == trace


def test_optional_columns_may_be_missing_and_lines_out_of_order(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("prompt_tokens,output_tokens,arrival_s\n5,7,2.5\n6,8,0\n")
    assert read(path) == [
        Arrival(arrival_s=0, prompt_tokens=6, output_tokens=8),
        Arrival(arrival_s=2.5, prompt_tokens=5, output_tokens=7),
    ]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("-1,5,5,normal,,,", "arrival_s is '-1', must be 0 or more"),
        ("nan,5,5,normal,,,", "arrival_s is 'nan'"),
        ("1,0,5,normal,,,", "prompt_tokens is '0', must be a whole number, at least 1"),
        ("1,5,2.5,normal,,,", "output_tokens is '2.5'"),
        ("1,5,,normal,,,", "output_tokens is missing"),
        ("1,5,5,sometimes,,,", "reader is 'sometimes', must be one of normal"),
        ("1,5,5,normal,-2,,", "leaves_after_s is '-2'"),
        ("1,5,5,normal,,,-1", "tier is '-1'"),
        ("1,5,5,normal,,,0,9", "more values than columns"),
    ],
)
def test_a_wrong_value_is_named_with_its_line(tmp_path: Path, line: str, complaint: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(f"{HEADER}0,5,5,normal,,,\n{line}\n")
    with pytest.raises(TraceError, match="line 3") as raised:
        read(path)
    assert complaint in str(raised.value)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (f"{ONE}\n{{\"arrival_s\": 1}}\n", "line 2: prompt_tokens is missing"),
        ('\n{"arrival_s": 1,\n', "line 2: not JSON"),
        ("[1, 2]\n", "line 1: not a JSON object"),
        ('{"arrival_s": 1, "prompt_tokens": 1, "output_tokens": 1, "speed": 4}\n', "line 1: unknown field 'speed'"),
        ('{"arrival_s": true, "prompt_tokens": 1, "output_tokens": 1}\n', "line 1: arrival_s is True"),
        ("", "no request in it"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_json_lines_is_named(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(text)
    with pytest.raises(TraceError) as raised:
        read(path)
    assert complaint in str(raised.value)


def test_missing_column(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("arrival_s,prompt_tokens\n1,2\n")
    with pytest.raises(TraceError, match="line 2: output_tokens is missing"):
        read(path)


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="csv or a"):
        read(tmp_path / "trace.parquet")
    (tmp_path / "trace.csv").write_bytes(b"arrival_s\n\xff\n")
    with pytest.raises(TraceError, match="not UTF-8"):
        read(tmp_path / "trace.csv")
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "none.csv")
