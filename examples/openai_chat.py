"""The official openai client: python examples/openai_chat.py "a message" [host:port]."""

from __future__ import annotations

import sys

import openai


def main(message: str, address: str = "127.0.0.1:8080") -> None:
    client = openai.OpenAI(base_url=f"http://{address}/v1", api_key="none", max_retries=0)
    chunks = client.chat.completions.create(
        model="llm", messages=[{"role": "user", "content": message}], max_tokens=128, stream=True
    )
    for chunk in chunks:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
    print()


if __name__ == "__main__":
    main(*sys.argv[1:] or ["Tell me something."])
