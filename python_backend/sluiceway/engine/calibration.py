"""What the machine can do: step time, prefill rate and copy rate, from start-up measurements and then every step."""

from __future__ import annotations

_STEPS = 64  # a moving average's memory: about a second or two of steps
_LEAST_SHARE = 0.05  # of a step's time: below this the rest of a prefill step is noise, not prefill


class Calibration:
    """Moving averages; it is told times and reads no clock. 0 means unknown.

    Prefill runs beside decoding, so its rate comes from what a step with prefill takes longer than one
    without: that is what others lose by a recompute. While no step without prefill was seen, the whole
    step counts, which makes recomputing look dearer than it is, never cheaper.
    """

    def __init__(
        self, *, step_s: float = 0.0, prefill_tokens_per_s: float = 0.0, swap_blocks_per_s: float = 0.0
    ) -> None:
        """Start from measured or known values."""
        self._step_s = step_s
        self._decode_step_s = step_s
        self._prefill_token_s = 1 / prefill_tokens_per_s if prefill_tokens_per_s else 0.0
        self._swap_block_s = 1 / swap_blocks_per_s if swap_blocks_per_s else 0.0

    @property
    def step_s(self) -> float:
        """Mean seconds of a step that computes."""
        return self._step_s

    @property
    def prefill_tokens_per_s(self) -> float:
        return 1 / self._prefill_token_s if self._prefill_token_s else 0.0

    @property
    def swap_blocks_per_s(self) -> float:
        """KV blocks copied in a second, one way."""
        return 1 / self._swap_block_s if self._swap_block_s else 0.0

    def observe_step(self, seconds: float, *, decodes: int, prefill_tokens: int) -> None:
        """One step took ``seconds``, without its copies."""
        if not decodes and not prefill_tokens:
            return
        self._step_s = _moved(self._step_s, seconds)
        if not prefill_tokens:
            self._decode_step_s = _moved(self._decode_step_s, seconds)
            return
        extra = max(seconds - self._decode_step_s, seconds * _LEAST_SHARE)
        self._prefill_token_s = _moved(self._prefill_token_s, extra / prefill_tokens)

    def observe_swap(self, seconds: float, *, blocks: int) -> None:
        """``blocks`` were copied in ``seconds``."""
        if blocks:
            self._swap_block_s = _moved(self._swap_block_s, seconds / blocks)


def _moved(average: float, value: float) -> float:
    return average + (value - average) / _STEPS if average else value
