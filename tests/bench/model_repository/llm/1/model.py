"""The baseline arm: the decoupled model that people write today.

One thread per request, ``send()`` in a loop, one message per token at a fixed pace, and the cancellation
check that Triton's documentation recommends. It learns nothing else of its reader: no window, no watermark.
``send()`` returns at once either way, so all that a reader does not take stays in tritonserver. Kept only
to be measured beside Sluiceway.
"""

from __future__ import annotations

import json
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
import yaml

WORDS = ("river ", "stone ", "light ", "cloud ", "green ", "seven ", "north ", "quiet ")


@dataclass(frozen=True, slots=True)
class Answer:
    """What one request asked for."""

    max_tokens: int
    token_ids: bool
    frame: bool
    finish_reason: bool


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        beside = Path(args["model_repository"]) / "sluiceway.yaml"
        config = yaml.safe_load(Path(os.environ.get("SLUICEWAY_CONFIG", beside)).read_text())
        self.step_s = float(config["engine"]["step_s"])

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            sampling = read(request, "sampling_parameters")
            answer = Answer(
                max_tokens=int(json.loads(sampling or b"{}").get("max_tokens", 16)),
                token_ids=bool(read(request, "return_token_ids")),
                frame=bool(read(request, "return_frame")),
                finish_reason=bool(read(request, "return_finish_reason")),
            )
            sender = request.get_response_sender()
            threading.Thread(target=self.stream, args=(sender, answer), daemon=True).start()

    def stream(self, sender: Any, answer: Answer) -> None:
        start = time.monotonic()
        for index in range(answer.max_tokens):
            time.sleep(max(0.0, start + (index + 1) * self.step_s - time.monotonic()))
            if sender.is_cancelled():
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
                return
            last = index + 1 == answer.max_tokens
            flags = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if last else 0
            sender.send(response(index, answer, last), flags=flags)


def read(request: Any, name: str) -> Any:
    """The single value of an input, or None if the client did not send it."""
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return None if tensor is None else tensor.as_numpy().reshape(-1)[0]


def response(index: int, answer: Answer, last: bool) -> Any:
    word = index % len(WORDS)
    tensors = [pb_utils.Tensor("text_output", np.array([WORDS[word].encode()], dtype=object))]
    if answer.token_ids:
        tensors.append(pb_utils.Tensor("token_ids", np.array([word], dtype=np.int32)))
    if answer.frame:
        tensors.append(pb_utils.Tensor("frame", np.array([index, index], dtype=np.int64)))
    if answer.finish_reason:
        reason = b"length" if last else b""
        tensors.append(pb_utils.Tensor("finish_reason", np.array([reason], dtype=object)))
    return pb_utils.InferenceResponse(output_tensors=tensors)
