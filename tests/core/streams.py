"""What the sender's tests share: a stream with its window, and the other sides played honestly."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from sluiceway.core.commands import (
    AbortGeneration,
    CloseSilently,
    Command,
    Frame,
    PauseGeneration,
    ReleaseKv,
    ReplaceGeneration,
    ResumeGeneration,
    SendFrame,
    SetWeight,
    SpoolFrame,
    StreamClosed,
    SwapOut,
)
from sluiceway.core.decision import Action, Decision
from sluiceway.core.events import (
    DeadlineReached,
    Decided,
    EngineFinished,
    Event,
    FinishReason,
    FrameSent,
    TokensProduced,
)
from sluiceway.core.limits import Limits, Size
from sluiceway.core.record import Record
from sluiceway.core.sender import BoundedSender
from sluiceway.core.states import State
from sluiceway.core.window import DeliveryWindow

OVERHEAD = 10
LIMITS = Limits(
    window=Size(bytes=200, tokens=100, frames=8),
    high=Size(bytes=300, tokens=60, frames=12),
    low=Size(bytes=40, tokens=10, frames=3),
    max_frame_bytes=60,
    merge_frames=4,
    frame_overhead_bytes=OVERHEAD,
    max_silence_s=60.0,
    signal_timeout_s=5.0,
    drain_timeout_s=3.0,
)


def limits(**changes: object) -> Limits:
    return replace(LIMITS, **changes)  # type: ignore[arg-type]


@dataclass
class Stream:
    """A sender and its window; sends return at once unless ``pump_lags``."""

    limits: Limits = LIMITS
    now: float = 100.0
    pump_lags: bool = False
    is_resumable: bool = False
    acks: bool = False
    first_sequence: int = 0
    first_token_index: int = 0
    frames: list[Frame] = field(default_factory=list)
    commands: list[Command] = field(default_factory=list)
    spooled: list[Frame] = field(default_factory=list)  # what nobody was connected to take

    def __post_init__(self) -> None:
        self.window = DeliveryWindow(self.limits.window)
        self.window.open("r", acks=self.acks)
        self.sender = BoundedSender(
            "r",
            self.limits,
            self.window,
            self.now,
            resumable=self.is_resumable,
            acks=self.acks,
            first_sequence=self.first_sequence,
            first_token_index=self.first_token_index,
        )
        self.returned_sends = 0
        self.token = 0
        self.let_out = 0  # frames that Envoy let out

    def do(self, event: Event) -> list[Command]:
        """All commands that the event led to, those of returned sends included."""
        commands = self.handle(event)
        if not self.pump_lags:
            commands += self.return_sends()
        return commands

    def return_sends(self, count: int = 1_000) -> list[Command]:
        commands: list[Command] = []
        while self.returned_sends < len(self.frames) and count > 0:
            self.returned_sends += 1
            count -= 1
            commands += self.handle(FrameSent(self.first_sequence + self.returned_sends - 1))
        return commands

    def handle(self, event: Event) -> list[Command]:
        commands = list(self.sender.handle(event, self.now))
        self.frames += [command.frame for command in commands if isinstance(command, SendFrame)]
        self.spooled += [command.frame for command in commands if isinstance(command, SpoolFrame)]
        self.commands += commands
        return commands

    def decide(self, action: Action, run_ahead_bytes: int = 0) -> list[Command]:
        return self.do(Decided(Decision(action=action, reason="test", run_ahead_bytes=run_ahead_bytes)))

    def produce(self, text: bytes = b"word ", times: int = 1) -> list[Command]:
        commands: list[Command] = []
        for _ in range(times):
            commands += self.do(TokensProduced((self.token,), text))
            self.token += 1
        return commands

    def finish(self, reason: FinishReason = FinishReason.STOP) -> list[Command]:
        return self.do(EngineFinished(reason))

    def deliver(self, frames: int | None = None) -> list[Command]:
        """Envoy reports that ``frames`` more (None: all that were handed out) are with the client."""
        self.let_out = len(self.frames) if frames is None else min(self.let_out + frames, len(self.frames))
        size = sum(frame.wire_bytes for frame in self.frames[: self.let_out])
        return self.report(Record("rpc", self.let_out, size, size))

    def acknowledge(self, sequence: int) -> list[Command]:
        """The client says that it has all frames up to and with ``sequence``."""
        return self.do(self.window.acknowledge("r", self.sender.frames_acknowledged_by(sequence))["r"])

    def report(self, record: Record) -> list[Command]:
        return self.do(self.window.observe(record)["r"])

    def at(self, now: float) -> list[Command]:
        """The clock is at ``now`` and the driver says so."""
        self.now = now
        return self.do(DeadlineReached())

    def deliver_until(self, state: State) -> None:
        """The client reads frame by frame until the stream is in ``state``."""
        for _ in range(1_000):
            if self.sender.state is state:
                return
            self.deliver(1)
        raise AssertionError(f"still {self.sender.state}, not {state}")

    def produce_until(self, state: State) -> None:
        for _ in range(1_000):
            if self.sender.state is state:
                return
            self.produce()
        raise AssertionError(f"still {self.sender.state}, not {state}")

    @property
    def text(self) -> str:
        return "".join(frame.text for frame in self.frames)

    @property
    def token_ids(self) -> list[int]:
        return [token for frame in self.frames for token in frame.token_ids]

    def kinds(self) -> list[str]:
        """The commands that are neither frames nor weights, by name."""
        left_out = SendFrame | SpoolFrame | SetWeight
        return [type(command).__name__ for command in self.commands if not isinstance(command, left_out)]


def names(commands: list[Command]) -> list[str]:
    return [type(command).__name__ for command in commands]


def check_whole_life(commands: list[Command]) -> None:
    """What holds for every stream, however it went."""
    finals = [
        command
        for command in commands
        if isinstance(command, CloseSilently)
        or (isinstance(command, SendFrame) and command.frame.finish_reason is not None)
    ]
    assert len(finals) <= 1
    if finals:
        after = commands[commands.index(finals[0]) + 1 :]
        assert not any(isinstance(command, SendFrame) for command in after)
    closed = [command for command in commands if isinstance(command, StreamClosed)]
    assert len(closed) <= len(finals)
    if closed:
        assert commands[-1] is closed[0]
    assert sum(isinstance(command, AbortGeneration) for command in commands) <= 1
    turns = [type(command) for command in commands if isinstance(command, tuple(_MAY_FOLLOW))]
    for before, turn in zip([None, *turns], turns, strict=False):
        assert before in _MAY_FOLLOW[turn], f"{turn} after {before}"
    sent = [command for command in commands if isinstance(command, SendFrame)]
    sequences = [command.frame.sequence for command in sent]
    assert sequences == list(range(sequences[0] if sent else 0, (sequences[0] if sent else 0) + len(sent)))
    spooled = [command.frame for command in commands if isinstance(command, SpoolFrame)]
    kept = [command.frame.sequence for command in sent if not command.is_notice] + [frame.sequence for frame in spooled]
    assert not spooled or kept == list(range(kept[0], kept[0] + len(kept)))
    ends = [frame for frame in spooled if frame.finish_reason is not None]
    assert ends in ([], spooled[-1:])
    if spooled and closed:
        assert ends


_BACK = (ResumeGeneration, ReplaceGeneration, None)
_MAY_FOLLOW: dict[type, tuple[type | None, ...]] = {
    PauseGeneration: _BACK,
    SwapOut: (PauseGeneration,),
    ReleaseKv: (PauseGeneration, SwapOut),
    ResumeGeneration: (PauseGeneration, SwapOut, ReleaseKv),
    ReplaceGeneration: (PauseGeneration, SwapOut, ReleaseKv),
}
