"""The clients of the scenarios: people who read, and clients that never do."""

from __future__ import annotations

import itertools

from sluiceway.cli.bench.readers import OVER_HTTP1, ClientPlan, ConnectionSettings, Never, Normal, StreamRequest

SMALL_WINDOW = 4096
STREAMS_A_CONNECTION = 50
FOR_EVER = 1_000_000  # stopped with their process
_turns = itertools.count()  # over HTTP a stream's name is its key in Envoy's records: never used twice


def readers(
    port: int,
    count: int,
    *,
    tokens: int,
    stream_window: int = 65_535,
    share: str | None = None,
    protocol: str = "grpc",
) -> list[ClientPlan]:
    """``count`` people who ask for one short answer after the other until their process is stopped."""
    turn = next(_turns)
    return [
        ClientPlan(
            connection=connection(port, stream_window, protocol),
            request=StreamRequest(
                prompt="Tell me something.", max_tokens=tokens, client_id=f"reader-{turn}-{index}", sampling=SAMPLING
            ),
            policy=Normal(),
            share=share,
            repeat=FOR_EVER,
            # Not in step with each other, and not with the engine's steps either.
            start_after_s=0.2 + 0.137 * index,
            pause_s=0.0117,
        )
        for index in range(count)
    ]


def never_readers(
    port: int,
    count: int,
    *,
    tokens: int,
    share: str | None = None,
    a_connection: int = 1,
    after_s: float = 0.0,
    protocol: str = "grpc",
) -> list[ClientPlan]:
    """``count`` clients with a small window who take what it holds and nothing more.

    share: all on the connection of that name; else ``a_connection`` of them on each connection.
    """
    turn = next(_turns)
    return [
        ClientPlan(
            connection=connection(port, SMALL_WINDOW, protocol),
            request=StreamRequest(
                prompt="Tell me something.", max_tokens=tokens, client_id=f"never-{turn}-{index}", sampling=SAMPLING
            ),
            policy=Never(),
            share=share or f"never-{index // a_connection}",
            start_after_s=after_s + 0.005 * index,
        )
        for index in range(count)
    ]


SAMPLING = {"ignore_eos": True, "temperature": 0}


def connection(port: int, stream_window: int, protocol: str = "grpc", host: str = "127.0.0.1") -> ConnectionSettings:
    """A connection whose own window is wide: only its streams' windows hold anything back.

    Over HTTP/1.1 a small window is a small receive buffer.
    """
    is_small_buffer = protocol in OVER_HTTP1 and stream_window == SMALL_WINDOW
    return ConnectionSettings(
        host=host,
        port=port,
        protocol=protocol,
        stream_window=stream_window,
        connection_window=16 * 1024 * 1024,
        receive_buffer=SMALL_WINDOW if is_small_buffer else None,
    )
