"""A stream that ends while its reader's window is closed is not cut."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
import tritonclient.grpc as tritonclient

from e2e.inference import wait_for
from sluiceway.cli.bench.departures import finished_entries
from sluiceway.cli.bench.readers import ConnectionSettings, Leave, Normal, ReaderLoop, StopAfter, StreamRequest
from sluiceway.cli.stack import Stack, StackSettings

pytestmark = pytest.mark.e2e

TOKENS = 100  # about 13 KB: more than the client's window, less than what Envoy and we hold
CLOSED_S = 3.0  # how long the window stays closed after the end; Envoy's delayed close takes 1 s
# Without these two grpcio reads megabytes ahead of its application, and no window ever closes.
SMALL_WINDOW = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 4096)]


@pytest.fixture(scope="module")
def stack(tmp_path_factory):
    config = {"engine": {"kind": "scripted", "step_s": 0.005, "script": "unicode"}}
    with Stack(StackSettings(run_dir=tmp_path_factory.mktemp("truncation"), config=config)) as running:
        yield running


def ask(name):
    return StreamRequest(prompt="river", max_tokens=TOKENS, sampling={"temperature": 0}, client_id=name)


def connect(loop, stack):
    return loop.connect(ConnectionSettings(port=stack.ports.envoy, stream_window=4096))


@pytest.fixture(scope="module")
def whole_answer(stack):
    """What a reader gets that never stops."""
    with ReaderLoop() as loop:
        stream = loop.open(connect(loop, stack), ask("reference"), Normal())
        assert stream.wait(30)
    assert len(stream.reading.token_ids) == TOKENS
    return stream.reading


@pytest.mark.parametrize("half_close", [True, False], ids=["half-closed", "send side open"])
def test_reader_that_stopped_before_the_end_gets_every_frame_later(stack, whole_answer, half_close):
    name = f"stopped-{half_close}"
    with ReaderLoop() as loop:
        stream = loop.open(connect(loop, stack), ask(name), StopAfter(0), half_close=half_close)
        finished_entries(stack, [name])  # the engine is done and the last frame is with Envoy
        time.sleep(CLOSED_S)
        assert len(stream.reading.token_ids) < TOKENS, "the window was never closed: this run shows nothing"
        loop.set_policy(stream, Normal())
        wait_for(lambda: stream.reading.finish_reason)
        if not half_close:
            loop.leave(stream, Leave.HALF_CLOSE)
        assert stream.wait(10)

    reading = stream.reading
    assert (reading.error, reading.grpc_status) == ("", 0)
    assert reading.finish_reason == "length"
    assert reading.text == whole_answer.text
    assert reading.token_ids == whole_answer.token_ids
    assert [sequence for sequence, _ in reading.frames] == list(range(len(reading.frames)))


def test_tritonclient_whose_callback_blocks_gets_every_frame_later(stack, whole_answer):
    """tritonclient holds its send side open for as long as the stream lives."""
    goes_on, texts, reasons, errors = threading.Event(), [], [], []

    def callback(result, error):
        goes_on.wait()
        if error is not None:
            errors.append(error)
            return
        texts.append(result.as_numpy("text_output")[0].decode())
        reasons.append(result.as_numpy("finish_reason")[0].decode())

    with tritonclient.InferenceServerClient(f"127.0.0.1:{stack.ports.envoy}", channel_args=SMALL_WINDOW) as client:
        client.start_stream(callback)
        client.async_stream_infer("llm", tritonclient_inputs(ask("tritonclient")), request_id="tritonclient")
        finished_entries(stack, ["tritonclient"])
        time.sleep(CLOSED_S)
        goes_on.set()
        wait_for(lambda: errors or (reasons and reasons[-1]))
        client.stop_stream()

    assert errors == []
    assert reasons[-1] == "length"
    assert "".join(texts) == whole_answer.text


def tritonclient_inputs(request):
    """The request's inputs as tritonclient wants them."""
    inputs = []
    for tensor, raw in zip(request.protobuf().inputs, request.protobuf().raw_input_contents, strict=True):
        text = tensor.datatype == "BYTES"
        value = np.array([raw[4:]], dtype=object) if text else np.array([raw != b"\x00"], dtype=bool)
        inputs.append(tritonclient.InferInput(tensor.name, list(tensor.shape), tensor.datatype))
        inputs[-1].set_data_from_numpy(value)
    return inputs
