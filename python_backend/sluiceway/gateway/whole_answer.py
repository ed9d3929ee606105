"""An answer that goes out in one piece."""

from __future__ import annotations

from sluiceway.client.frames import Frame
from sluiceway.gateway.errors import Problem
from sluiceway.gateway.upstream_rpc import UpstreamRpc


async def collect(rpc: UpstreamRpc, max_bytes: int) -> list[Frame]:
    """All frames, each acknowledged as it comes: what waits for them is this process. Closes ``rpc``.

    Raises GenerationError, or Problem if the text has more than ``max_bytes``.
    """
    frames = []
    text_bytes = 0
    try:
        async for frame in rpc:
            text_bytes += len(frame.text.encode())
            if text_bytes > max_bytes:
                raise Problem(
                    400, f"the answer has more than {max_bytes} bytes; ask for it as a stream", code="answer_too_large"
                )
            frames.append(frame)
            rpc.ack(frame.sequence)
    finally:
        await rpc.aclose()
    return frames
