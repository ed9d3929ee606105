from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.conftest import byte_level_tokenizer
from tokenizers import Tokenizer, decoders, models

from sluiceway.engine.detokenizer import TokenText

BYTE_LEVEL = byte_level_tokenizer()
TEXTS = ["the café 😀 a", "水門は流れる", "👩‍👩‍👧‍👦🏳️‍🌈", "e\u0301 n\u0303", "", " leading", "<extra 3>the <end>tail"]


def streamed(tokenizer, token_ids: list[int]) -> bytes:
    detokenizer = TokenText(tokenizer).start()
    return b"".join(detokenizer.feed(token_id) for token_id in token_ids) + detokenizer.flush()


def sentencepiece_like(kind: str) -> Tokenizer:
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁the", "▁a", "é", "b", "▁▁", "水"]
    tokenizer = Tokenizer(models.BPE(vocab={piece: index for index, piece in enumerate(pieces)}, merges=[]))
    tokenizer.decoder = {
        "llama": decoders.Sequence([
            decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)
        ]),
        "metaspace": decoders.Metaspace(),
        "gemma": decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]),
        "wordpiece": decoders.WordPiece("##", cleanup=False),
    }[kind]  # fmt: skip
    tokenizer.add_special_tokens(["<end>"])
    return tokenizer


@pytest.mark.parametrize("text", TEXTS)
def test_byte_level_equals_decode(text: str) -> None:
    token_ids = BYTE_LEVEL.encode(text).ids
    expected = BYTE_LEVEL.decode(token_ids, skip_special_tokens=True)
    assert streamed(BYTE_LEVEL, token_ids).decode() == expected == text.replace("<end>", "")


@given(st.lists(st.integers(0, 271), max_size=30))
@settings(deadline=None)
def test_byte_level_equals_decode_for_any_tokens_also_invalid_utf8(token_ids: list[int]) -> None:
    expected = BYTE_LEVEL.decode(token_ids, skip_special_tokens=True)
    assert streamed(BYTE_LEVEL, token_ids).decode(errors="replace") == expected


@pytest.mark.parametrize("kind", ["llama", "metaspace", "gemma", "wordpiece"])
@given(
    token_ids=st.lists(st.sampled_from([257, 258, 259, 260, 261, 262, 263, 264, 0xF1, 0xE7, 0xA1, 0xB5]), max_size=12)
)
@settings(deadline=None, max_examples=60)
def test_other_decoders_equal_decode(kind: str, token_ids: list[int]) -> None:
    tokenizer = sentencepiece_like(kind)
    if kind == "llama" or kind == "gemma":
        # Byte tokens only as whole characters: what is not UTF-8 is the documented difference.
        token_ids = [t for t in token_ids if t > 256] + [1 + byte for byte in "水é😀".encode()] + [258]
    else:
        token_ids = [t for t in token_ids if t > 256]
    expected = tokenizer.decode(token_ids, skip_special_tokens=True)
    assert streamed(tokenizer, token_ids).decode() == expected


def test_byte_fallback_gives_bytes_as_they_come() -> None:
    detokenizer = TokenText(sentencepiece_like("llama")).start()
    assert [detokenizer.feed(1 + byte) for byte in "水".encode()] == [b"\xe6", b"\xb0", b"\xb4"]


def test_unknown_ids_are_silent() -> None:
    assert streamed(BYTE_LEVEL, [100_000]) == b""
