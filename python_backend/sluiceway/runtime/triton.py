"""Triton's Python API, as far as we use it. Importable only inside a stub."""

from __future__ import annotations

from typing import Any

import triton_python_backend_utils as pb_utils

from sluiceway.runtime.codec import INPUTS, RawRequest
from sluiceway.runtime.control import CONTROL_INPUTS
from sluiceway.runtime.errors import ErrorCode
from sluiceway.runtime.inputs import Array

_FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


def raw_request(request: Any) -> RawRequest:
    """What a request holds; the arrays are views that live as long as the request."""
    inputs = {}
    for name in (*INPUTS, *CONTROL_INPUTS):
        tensor = pb_utils.get_input_tensor_by_name(request, name)
        if tensor is not None:
            inputs[name] = tensor.as_numpy()
    return RawRequest(inputs=inputs, client_id=request.request_id(), parameters=request.parameters())


class TritonResponder:
    """runtime.response_path.Responder over Triton's response sender of one request."""

    def __init__(self, request: Any) -> None:
        self._sender = request.get_response_sender()

    def send(self, outputs: list[tuple[str, Array]], *, final: bool) -> None:
        response = pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor(*output) for output in outputs])
        self._sender.send(response, flags=_FINAL if final else 0)

    def send_error(self, message: str, code: ErrorCode) -> None:
        error = pb_utils.TritonError(message, getattr(pb_utils.TritonError, code))
        self._sender.send(pb_utils.InferenceResponse(output_tensors=[], error=error), flags=_FINAL)

    def close(self) -> None:
        self._sender.send(flags=_FINAL)

    def is_cancelled(self) -> bool:
        return bool(self._sender.is_cancelled())
