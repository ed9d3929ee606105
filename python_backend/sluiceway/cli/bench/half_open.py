"""Clients whose network goes dead: no FIN, no RST, nothing. How long until the backend knows?"""

from __future__ import annotations

import time
from typing import Any

from sluiceway.cli.bench.departures import (
    Situation,
    connection_settings,
    finished_entries,
    request,
    wait_until,
)
from sluiceway.cli.bench.network import SERVER_ADDRESS, CutNetwork
from sluiceway.cli.bench.readers import ReaderLoop
from sluiceway.cli.envoy import ENVOY_YAML, EnvoyOverrides, render
from sluiceway.cli.ports import Ports
from sluiceway.cli.stack import Stack

# Envoy spreads its pings by this much (connection_keepalive.interval_jitter), and our records take a moment.
PING_JITTER = 1.15
RECORD_DELAY_S = 1.0


def configured_s(overrides: EnvoyOverrides) -> float:
    """Within what time the client-facing HTTP/2 pings must have found a dead client."""
    listener = render(ENVOY_YAML, Ports.default(), overrides)["static_resources"]["listeners"][0]
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    keepalive = manager["http2_protocol_options"]["connection_keepalive"]
    interval, timeout = (float(keepalive[key].removesuffix("s")) for key in ("interval", "timeout"))
    return round(PING_JITTER * interval + timeout + RECORD_DELAY_S, 3)


def detect(stack: Stack, network: CutNetwork, clients: int, timeout_s: float) -> list[dict[str, Any]]:
    """``clients`` streams in each situation, then the cut; one row a stream with ``detect_s``.

    The stack's Envoy listens on ``SERVER_ADDRESS``. Raises TimeoutError when a stream outlives
    ``timeout_s``.
    """
    with ReaderLoop() as loop:
        loop.call(network.join)
        ids: dict[str, Situation] = {}
        for situation in (Situation.PAUSED, Situation.DECODING, Situation.PREFILL):
            # One prefill at a time: the others would wait in its queue.
            names = [f"half-open-{situation}-{n}" for n in range(1 if situation is Situation.PREFILL else clients)]
            for name in names:
                connection = loop.connect(connection_settings(stack, host=SERVER_ADDRESS))
                loop.open(connection, request(situation, name), situation.policy)
            wait_until(stack, names, situation.holds, f"{situation} before the cut")
            ids.update(dict.fromkeys(names, situation))
        cut_at = network.cut()
        entries = finished_entries(stack, ids, timeout_s)
        network.restore()  # so that closing the sockets is not another half-open connection
        time.sleep(0.1)
    return [
        {
            "client_id": name,
            "situation": situation,
            "detect_s": (entries[name]["t_client_gone"] or entries[name]["t_closed"]) - cut_at,
            "cause": entries[name]["cause"],
            "finish_reason": entries[name]["finish_reason"],
        }
        for name, situation in ids.items()
    ]
