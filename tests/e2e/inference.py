"""Requests and answers of ModelStreamInfer, as a client writes them by hand."""

from __future__ import annotations

import contextlib
import json
import time

import grpc
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc

# Envoy adds nothing to a response of ours but HTTP/2 frames, so sizes and counts can be compared.
TIMEOUT_S = 60
DTYPES = {"BYTES": None, "INT32": np.int32, "INT64": np.int64}


def infer_request(prompt="river", client_id="", sampling=None, raw=None, **flags):
    """sampling: an object, or bytes to send as they are; raw: other inputs, name to (datatype, shape, bytes)."""
    message = service_pb2.ModelInferRequest(model_name="llm", id=client_id)
    texts = {"text_input": prompt}
    if sampling is not None:
        texts["sampling_parameters"] = sampling if isinstance(sampling, bytes) else json.dumps(sampling)
    inputs = {}
    for name, text in texts.items():
        data = text if isinstance(text, bytes) else text.encode()
        inputs[name] = ("BYTES", [1], len(data).to_bytes(4, "little") + data)
    for name, flag in flags.items():
        inputs[name] = ("BOOL", [1], bytes([flag]))
    for name, (datatype, shape, data) in (inputs | (raw or {})).items():
        message.inputs.add(name=name, datatype=datatype, shape=shape)
        message.raw_input_contents.append(data)
    return message


@contextlib.contextmanager
def inference_stub(port):
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)


def ask(port, *requests, metadata=()):
    """All responses of one RPC that sends these requests and then half-closes."""
    with inference_stub(port) as stub:
        return list(stub.ModelStreamInfer(iter(requests), timeout=TIMEOUT_S, metadata=metadata))


def outputs(response):
    infer = response.infer_response
    result = {}
    for output, data in zip(infer.outputs, infer.raw_output_contents, strict=True):
        dtype = DTYPES[output.datatype]
        result[output.name] = data[4:].decode() if dtype is None else np.frombuffer(data, dtype).tolist()
    return result


def errors(responses):
    return [response.error_message for response in responses if response.error_message]


def is_final(response):
    return response.infer_response.parameters["triton_final_response"].bool_param


def wait_for(condition, timeout_s=20, what="it"):
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{what}: not within {timeout_s} s"
        time.sleep(0.05)
    return value
