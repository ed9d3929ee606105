"""Who takes part in the demo, and how they read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

from sluiceway.cli.bench.readers import (
    ConnectionSettings,
    Leave,
    Never,
    Normal,
    Rate,
    ReaderLoop,
    Reading,
    ReadingPolicy,
    Stream,
    StreamRequest,
)

QUESTIONS = (
    "What is a river? Answer in two sentences.",
    "Why is the sky blue? Answer in two sentences.",
    "What do bees do in winter? Answer in two sentences.",
    "How does a kettle boil water? Answer in two sentences.",
)
LONG_TASK = "Write a very long story about a ship that sails around the world."
ANSWER_TOKENS = 48
LONG_ANSWER_TOKENS = 2000
SMALL_WINDOW = 4096


def chat(text: str) -> str:
    """SmolLM2's chat format."""
    return f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """``name`` begins the client id of every request that the person sends."""

    name: str
    habit: str
    policy: ReadingPolicy
    window: int = SMALL_WINDOW


NORMAL = tuple(Role(name=name, habit="reads", policy=Normal(), window=65_535) for name in ("ada", "ben", "cleo"))
STUCK = tuple(Role(name=f"stuck-{n}", habit="never reads", policy=Never()) for n in range(1, 7))
SLOW = tuple(Role(name=f"slow-{n}", habit="reads 1 KB/s", policy=Rate(1024)) for n in range(1, 3))
VANISHING = Role(name="ghost", habit="vanishes", policy=Normal(), window=65_535)
EVERYBODY = (*NORMAL, *STUCK, *SLOW, VANISHING)


@dataclass(kw_only=True)
class Questioner:
    """A normal reader: one question after the other on one connection, while ``is_asking``."""

    role: Role
    loop: ReaderLoop
    port: int
    is_asking: bool = False
    answers: list[Reading] = field(default_factory=list)
    _stream: Stream | None = None
    _numbers: Iterator[int] = field(default_factory=count)

    def __post_init__(self) -> None:
        self._connection = self.loop.connect(ConnectionSettings(port=self.port, stream_window=self.role.window))

    @property
    def is_idle(self) -> bool:
        return self._stream is None

    def tick(self) -> None:
        """Collect an answer that is complete; ask the next question."""
        if self._stream is not None and self._stream.ended:
            self.answers.append(self._stream.reading)
            self._stream = None
        if self._stream is None and self.is_asking:
            number = next(self._numbers)
            first = [role.name for role in NORMAL].index(self.role.name)
            question = StreamRequest(
                prompt=chat(QUESTIONS[(first + number) % len(QUESTIONS)]),
                max_tokens=ANSWER_TOKENS,
                sampling={"temperature": 0},
                client_id=f"{self.role.name}#{number}",
            )
            self._stream = self.loop.open(self._connection, question, self.role.policy)

    def take_answers(self) -> list[Reading]:
        """The answers since the last call."""
        taken, self.answers = self.answers, []
        return taken


@dataclass(kw_only=True)
class Crowd:
    """The nine who are trouble: one long answer each, asked for at once."""

    loop: ReaderLoop
    port: int

    def __post_init__(self) -> None:
        self.streams = {
            role.name: self.loop.open(
                self.loop.connect(ConnectionSettings(port=self.port, stream_window=role.window)),
                StreamRequest(
                    prompt=chat(LONG_TASK),
                    max_tokens=LONG_ANSWER_TOKENS,
                    sampling={"temperature": 0, "ignore_eos": True},
                    client_id=role.name,
                ),
                role.policy,
            )
            for role in (*STUCK, *SLOW, VANISHING)
        }

    def vanish(self) -> float:
        """The one leaves in the middle of its answer; returns when."""
        return self.loop.leave(self.streams[VANISHING.name], Leave.TCP_RST)

    def leave(self) -> None:
        """The others give up."""
        for role in (*STUCK, *SLOW):
            self.loop.leave(self.streams[role.name], Leave.FIN)
