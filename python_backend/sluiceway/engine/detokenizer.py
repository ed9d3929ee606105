"""Token ids to raw bytes, one token at a time.

Concatenated and decoded, they are what ``tokenizer.decode(ids, skip_special_tokens=True,
clean_up_tokenization_spaces=False)`` gives. One difference is left: tokenizers with byte fallback turn
a whole run of byte tokens that is not UTF-8 into one U+FFFD per byte, which nobody can know before the
run ends; here the bytes come as they are, and decoding marks only those that are wrong.
"""

from __future__ import annotations

import json
import re
from typing import Any

from sluiceway.engine.batching import Detokenizer

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
# The longest UTF-8 sequence is 4 bytes; what is unfinished after more tokens than that never will be finished.
_WINDOW_TOKENS = 8


def _byte_alphabet() -> dict[str, int]:
    """The byte that each character of a byte-level token stands for.

    Printable Latin-1 characters stand for themselves, the other bytes for U+0100 onwards in order.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (byte for byte in range(256) if byte not in printable)
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(0x100 + index): byte for index, byte in enumerate(others)})
    return alphabet


_ALPHABET = _byte_alphabet()


class TokenText:
    """What the tokens of one ``tokenizers.Tokenizer`` mean. start() begins an answer."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._special = {token_id for token_id, token in tokenizer.get_added_tokens_decoder().items() if token.special}
        decoder = json.loads(tokenizer.to_str())["decoder"]
        steps = decoder["decoders"] if decoder and decoder["type"] == "Sequence" else [decoder] if decoder else []
        kinds = [step["type"] for step in steps]
        self._is_byte_level = kinds == ["ByteLevel"]
        self._replacements: list[tuple[str, str]] = []
        self._leading = ""
        self._drops_first_marks = False
        self._byte_fallback = False
        self._per_token = self._is_byte_level or self._understand(steps)
        self._known: dict[int, bytes] = {}

    def start(self) -> Detokenizer:
        return _PerToken(self) if self._per_token else _Window(self)

    def _understand(self, steps: list[dict[str, Any]]) -> bool:
        """Take over SentencePiece-like decoders step by step; False if there is one that is not known here."""
        for step in steps:
            match step:
                case {"type": "Replace", "pattern": {"String": pattern}, "content": content}:
                    self._replacements.append((pattern, content))
                case {"type": "Metaspace", "replacement": mark, "prepend_scheme": scheme}:
                    self._replacements.append((mark, " "))
                    self._drops_first_marks = scheme != "never"
                case {"type": "ByteFallback"}:
                    self._byte_fallback = True
                case {"type": "Strip", "content": content, "start": start, "stop": 0}:
                    self._leading = content * start
                case {"type": "Fuse"}:
                    pass
                case _:
                    return False
        return bool(steps)

    def is_special(self, token_id: int) -> bool:
        return token_id in self._special

    def decode(self, token_ids: list[int]) -> str:
        text: str = self._tokenizer.decode(token_ids, skip_special_tokens=True)
        return text

    def token_bytes(self, token_id: int) -> bytes:
        """Bytes of one token inside an answer; none for special and unknown ones."""
        known = self._known.get(token_id)
        if known is None:
            known = self._known[token_id] = self._make_bytes(token_id)
        return known

    def first_bytes(self, token_id: int) -> bytes:
        """Bytes of the answer's first token, without the space that starts it."""
        data = self.token_bytes(token_id)
        if self._drops_first_marks:
            token = self._tokenizer.id_to_token(token_id) or ""
            for mark, _ in self._replacements:
                token = token.replace(mark, "")
            return token.encode()
        leading = self._leading.encode()
        while leading and not data.startswith(leading):
            leading = leading[:-1]
        return data[len(leading) :]

    def _make_bytes(self, token_id: int) -> bytes:
        token: str | None = self._tokenizer.id_to_token(token_id)
        if token is None or token_id in self._special:
            return b""
        if self._is_byte_level:
            if all(character in _ALPHABET for character in token):
                return bytes(_ALPHABET[character] for character in token)
            return token.encode()
        if self._byte_fallback and (match := _BYTE_TOKEN.fullmatch(token)):
            return bytes([int(match[1], 16)])
        for pattern, content in self._replacements:
            token = token.replace(pattern, content)
        return token.encode()


class _PerToken:
    """Each token's bytes follow from the token alone."""

    def __init__(self, text: TokenText) -> None:
        self._text = text
        self._is_first = True

    def feed(self, token_id: int) -> bytes:
        if not self._is_first:
            return self._text.token_bytes(token_id)
        if self._text.is_special(token_id):
            return b""
        self._is_first = False
        return self._text.first_bytes(token_id)

    def flush(self) -> bytes:
        return b""


class _Window:
    """For any other decoder: what the last few tokens' text grows by."""

    def __init__(self, text: TokenText) -> None:
        self._text = text
        self._told: list[int] = []  # already in the text, kept for their effect on the next ones
        self._new: list[int] = []

    def feed(self, token_id: int) -> bytes:
        if not self._text.is_special(token_id):
            self._new.append(token_id)
        return self._take(force=len(self._new) > _WINDOW_TOKENS)

    def flush(self) -> bytes:
        return self._take(force=True)

    def _take(self, *, force: bool) -> bytes:
        before = self._text.decode(self._told)
        after = self._text.decode(self._told + self._new)
        if not self._new or (not force and (len(after) <= len(before) or after.endswith(_REPLACEMENT))):
            return b""
        self._told, self._new = self._new, []
        return after[len(before) :].encode()
