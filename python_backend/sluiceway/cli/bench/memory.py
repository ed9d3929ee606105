"""What a client that never reads costs in memory: growth of every process, and whether it goes on growing."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from matplotlib.figure import Figure

from sluiceway.cli.bench.harness import BenchContext, ScenarioResult, scripted
from sluiceway.cli.bench.pace import paused
from sluiceway.cli.bench.plans import SMALL_WINDOW, never_readers, readers
from sluiceway.cli.bench.promise import Promise
from sluiceway.cli.bench.readers import ReaderProcess
from sluiceway.cli.bench.stats import ratio
from sluiceway.cli.stack import Stack

STEP_S = 0.02
CLIENTS = 200
NAIVE_CLIENTS = 50  # a thread each, and Python: more of them starve each other on a small machine
TOKENS = 50_000
FLAT_S = 20.0
LIMIT_KIB = 256
LIMIT_WITH_GATEWAY_KIB = 384
KIB = 1024


@dataclass(slots=True)
class Growth:
    """RSS in bytes by process. samples: (seconds since the clients came, RSS by process)."""

    clients: int
    baseline: dict[str, int]
    samples: list[tuple[float, dict[str, int]]] = field(default_factory=list)
    settled: dict[str, int] = field(default_factory=dict)
    paused: int = -1

    @property
    def per_client_kib(self) -> float:
        """Growth at the end, summed over the processes."""
        return (total(self.samples[-1][1]) - total(self.baseline)) / self.clients / KIB

    @property
    def flat_ratio(self) -> float:
        """Summed RSS at the end over the one ``FLAT_S`` before it."""
        return ratio(total(self.samples[-1][1]), total(self.settled))

    @property
    def slope_kib_per_s(self) -> float:
        """Growth of one client, KiB a second, over the last ``FLAT_S``."""
        seconds, last = self.samples[-1]
        begin = min(self.samples, key=lambda sample: abs(sample[0] - (seconds - FLAT_S)))
        return (total(last) - total(begin[1])) / (seconds - begin[0]) / self.clients / KIB

    def figures(self) -> dict[str, Any]:
        last = self.samples[-1][1]
        return {
            "clients": self.clients,
            "paused": self.paused,
            "baseline_kib": {name: value // KIB for name, value in self.baseline.items()},
            "growth_per_client_kib": round(self.per_client_kib, 2),
            "growth_per_client_kib_by_process": {
                name: round((value - self.baseline.get(name, 0)) / self.clients / KIB, 2)
                for name, value in last.items()
            },
            "flat_ratio": round(self.flat_ratio, 5),
            "slope_kib_per_client_per_s": round(self.slope_kib_per_s, 4),
            "samples": [[round(at, 2), total(rss) // KIB] for at, rss in self.samples],
        }


def total(rss: dict[str, int]) -> int:
    return sum(rss.values())


def run(context: BenchContext) -> ScenarioResult:
    with context.stack("memory", scripted(STEP_S)) as stack:
        ours = _measure(context, stack, CLIENTS)
    arms = {"ours": ours}
    if context.protocol == "grpc":
        with context.naive_stack() as stack:
            arms["naive"] = _measure(context, stack, NAIVE_CLIENTS)
    for name, arm in arms.items():
        context.note(
            f"a client that never reads, {name}: {arm.per_client_kib:.0f} KiB and {arm.slope_kib_per_s:.2f} KiB/s more"
        )
    limit = LIMIT_KIB if context.protocol == "grpc" else LIMIT_WITH_GATEWAY_KIB
    return ScenarioResult(
        settings={
            "engine": "scripted",
            "step_s": STEP_S,
            "clients": CLIENTS,
            "tokens_asked": TOKENS,
            "client_stream_window_bytes": SMALL_WINDOW,
            "flat_over_s": FLAT_S,
            "protocol": context.protocol,
        },
        arms={name: arm.figures() for name, arm in arms.items()},
        promises=[
            Promise.at_most("growth_per_client_kib", ours.per_client_kib, limit, "KiB"),
            Promise.at_most("flat_ratio", ours.flat_ratio, 1.02, "ratio"),
        ],
        plot=lambda figure: draw(figure, arms, limit),
    )


def _measure(context: BenchContext, stack: Stack, clients: int) -> Growth:
    """Warm up with readers, then let the never-readers come, wait until all stand still, watch 20 s."""
    warm = ReaderProcess(readers(stack.ports.envoy, 8, tokens=100, protocol=context.protocol))
    context.sleep(context.seconds(8, 5), "warming up")
    warm.stop()
    context.sleep(2.0, "settling")
    growth = Growth(clients=clients, baseline=stack.rss_bytes())
    begin = time.monotonic()
    process = ReaderProcess(never_readers(stack.ports.envoy, clients, tokens=TOKENS, protocol=context.protocol))
    if stack.settings.with_backend_admin:
        _wait_until_paused(context, stack, growth, begin)
        _sample(context, stack, growth, begin, context.seconds(10, 4), "standing still")
    else:
        _sample(context, stack, growth, begin, 5.0, "naive: under way")
    growth.settled = growth.samples[-1][1]
    _sample(context, stack, growth, begin, FLAT_S, "watching whether it grows")
    process.stop()
    return growth


def _wait_until_paused(context: BenchContext, stack: Stack, growth: Growth, begin: float) -> None:
    def all_paused() -> bool:
        growth.samples.append((time.monotonic() - begin, stack.rss_bytes()))
        growth.paused = paused(stack.statistics(), "never")
        return growth.paused >= growth.clients

    context.wait_until(all_paused, "waiting until every stream is paused")


def _sample(context: BenchContext, stack: Stack, growth: Growth, begin: float, seconds: float, what: str) -> None:
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        context.sleep(min(1.0, left), what)
        growth.samples.append((time.monotonic() - begin, stack.rss_bytes()))


def draw(figure: Figure, arms: dict[str, Growth], limit: int) -> None:
    axis = figure.subplots()
    for name, growth in arms.items():
        start = total(growth.baseline)
        axis.plot(
            [at for at, _ in growth.samples],
            [(total(rss) - start) / growth.clients / KIB for _, rss in growth.samples],
            label=f"{name}, {growth.clients} clients",
        )
    axis.axhline(limit, linestyle="--", linewidth=1, color="grey", label=f"promise: {limit} KiB")
    axis.set(xlabel="seconds since the clients came", ylabel="KiB a client that never reads")
    axis.legend()
