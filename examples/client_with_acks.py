"""The Python client, reading slowly: python examples/client_with_acks.py "a prompt" [host:port]."""

from __future__ import annotations

import sys
import time

from sluiceway.client import Client, GenerationError, Slow


def on_slow(slow: Slow) -> None:
    print(f"\n[{slow.unread_frames} frames wait for you, the oldest for {slow.unread_s:.1f} s]", file=sys.stderr)


def main(prompt: str, address: str = "127.0.0.1:8080") -> None:
    sampling = {"max_tokens": 128, "temperature": 0}
    with Client(address) as client, client.generate(prompt, sampling=sampling, on_slow=on_slow) as generation:
        for frame in generation:
            print(frame.text, end="", flush=True)
            time.sleep(0.05)  # the model waits for you, and nothing is lost
        print(f"\n[{generation.finish_reason}]", file=sys.stderr)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:] or ["Tell me something."])
    except GenerationError as error:
        raise SystemExit(f"{error.code}: {error.message}") from None
