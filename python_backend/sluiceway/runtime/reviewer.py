"""The policy's shell: which streams it looks at, what it is told, and what an operator can read of its reasons."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping

from sluiceway.core.behind import describe
from sluiceway.core.decision import Action, BehindStream, Decision, Load
from sluiceway.core.policy import Policy
from sluiceway.core.reviews import Reviews
from sluiceway.core.spool import Spool
from sluiceway.core.spool_record import TOKEN_FRAME_BYTES
from sluiceway.engine.load import policy_load
from sluiceway.engine.protocol import EngineLoad
from sluiceway.runtime.config import Config
from sluiceway.runtime.stream import Stream

_Find = Callable[[str], Stream | None]


class Reviewer:
    """find(request_id): an open stream, by its own or its engine's id. log: one line for each decision.

    Times are the driver's clock.
    """

    def __init__(self, config: Config, spool: Spool, find: _Find, log: Callable[[str], None]) -> None:
        policy = Policy(config.policy.settings(), config.policy_mode)
        self._reviews = Reviews(policy, review_s=config.policy.review_s, max_per_turn=config.policy.max_per_turn)
        self._block_tokens = config.engine.kv_block_tokens
        self._spool = spool
        self._find = find
        self._log = log
        self._load: EngineLoad | None = None
        self._granted: set[str] = set()
        self._seen: dict[str, BehindStream] = {}
        self._decisions: Counter[tuple[Action, str]] = Counter()

    @property
    def behind(self) -> int:
        """How many streams are behind now."""
        return len(self._reviews)

    def observe(self, load: EngineLoad) -> None:
        """The engine as it was after its last step."""
        self._load = load

    def follow(self, stream: Stream, now: float) -> None:
        """After everything that happened to a stream, its end included."""
        request_id, sender = stream.request_id, stream.sender
        if sender.is_behind:
            self._reviews.add(request_id, now)
        elif request_id in self._reviews:
            self._reviews.remove(request_id, now, returned=stream.client_gone_at is None)
        if request_id in self._granted and not sender.run_ahead_bytes:
            self._granted.discard(request_id)
            self._spool.revoke(request_id)

    def next_deadline(self) -> float | None:
        """When review() has something to do."""
        return None if self._load is None else self._reviews.next_deadline()

    def review(self, now: float) -> list[tuple[Stream, Decision]]:
        """The decisions to obey. Each is logged and counted, those that change nothing too."""
        deadline = self.next_deadline()
        if self._load is None or deadline is None or deadline > now:
            return []
        load = self._full_load(self._load, now)
        self._seen.clear()
        decided = []
        for request_id, decision in self._reviews.review(now, load, lambda each: self._describe(each, now)):
            stream = self._find(request_id)
            assert stream is not None  # it was described in this turn
            self._decisions[decision.action, str(decision.reason)] += 1
            self._log(_line(self._seen[request_id], load, decision))
            if decision.action is Action.RUN_AHEAD and not self._grant(stream, decision):
                continue
            if decision.action is Action.DETACH and not self._reserve(stream):
                continue
            if decision.action is not Action.HOLD:
                decided.append((stream, decision))
        return decided

    def counts(self) -> Mapping[str, Mapping[str, int]]:
        """How often each action was chosen, by reason."""
        table: dict[str, dict[str, int]] = {}
        for (action, reason), count in sorted(self._decisions.items()):
            table.setdefault(action.value, {})[reason] = count
        return table

    def _grant(self, stream: Stream, decision: Decision) -> bool:
        """Whether the spool sets the room aside: the tenant may have less than the process."""
        granted_bytes = stream.sender.run_ahead_bytes + decision.run_ahead_bytes
        self._granted.discard(stream.request_id)
        if self._spool.grant(stream.request_id, stream.tenant, granted_bytes):
            self._granted.add(stream.request_id)
            return True
        return False

    def _reserve(self, stream: Stream) -> bool:
        """Whether the spool sets room aside for the rest of the answer; what it does not keep needs none."""
        stream_id = stream.request.stream_id
        seen = self._seen[stream.request_id]
        # Without its client, a stream makes a frame of every token.
        wanted = seen.spool_bytes_left + seen.tokens_left * TOKEN_FRAME_BYTES
        return stream_id not in self._spool or self._spool.reserve(stream_id, wanted)

    def _describe(self, request_id: str, now: float) -> BehindStream | None:
        stream = self._find(request_id)
        if stream is None:
            return None
        seen = describe(
            stream.sender,
            stream.limits,
            now,
            prompt_tokens=stream.prompt_tokens,
            max_tokens=stream.max_tokens,
            kv_block_tokens=self._block_tokens if stream.holds_kv else 0,
            tenant=stream.tenant,
        )
        if seen is not None:
            self._seen[request_id] = seen
        return seen

    def _full_load(self, load: EngineLoad, now: float) -> Load:
        oldest = None if load.oldest_waiting is None else self._find(load.oldest_waiting)
        return policy_load(
            load,
            longest_wait_s=0.0 if oldest is None else now - oldest.accepted_at,
            spool_free_bytes=self._spool.free_bytes,
        )


def _line(stream: BehindStream, load: Load, decision: Decision) -> str:
    """What was known and what was chosen, as one JSON object. No text of anybody."""
    return "decision " + json.dumps(
        {
            "request_id": stream.request_id,
            "action": decision.action.value,
            "reason": str(decision.reason),
            "costs_s": {action.value: round(cost, 6) for action, cost in decision.costs.items()},
            "run_ahead_bytes": decision.run_ahead_bytes,
            "state": stream.state.value,
            "behind_s": round(stream.behind_s, 3),
            "silence_s": round(stream.silence_s, 3),
            "drain_bytes_per_s": round(stream.drain_bytes_per_s, 1),
            "backlog_bytes": stream.backlog.bytes,
            "tokens_left": stream.tokens_left,
            "kv_blocks": stream.kv_blocks,
            "host_blocks": stream.host_blocks,
            "kv_blocks_free": load.kv_blocks_free,
            "host_blocks_free": load.host_blocks_free,
            "waiting": load.waiting,
            "longest_wait_s": round(load.longest_wait_s, 3),
            "spool_free_bytes": load.spool_free_bytes,
            "tier": stream.tier,
            "is_resumable": stream.is_resumable,
        }
    )
