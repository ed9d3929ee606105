from __future__ import annotations

import pytest

from sluiceway.core.commands import Frame
from sluiceway.core.events import FinishReason
from sluiceway.runtime.codec import Outputs
from sluiceway.runtime.errors import ErrorCode
from sluiceway.runtime.response_path import ResponsePath


class Responder:
    """Triton's rules: nothing after FINAL, and is_cancelled() after FINAL kills the server."""

    def __init__(self, fails=0):
        self.calls, self.finals, self.fails, self.names = [], 0, fails, []

    def _call(self, *call, final):
        if self.fails:
            self.fails -= 1
            raise RuntimeError("broken")
        assert not self.finals
        self.finals += final
        self.calls.append(call)

    def send(self, outputs, *, final):
        self.names.append([name for name, _ in outputs])
        self._call("send", outputs[0][1].tolist()[0], final=final)

    def send_error(self, message, code):
        self._call("error", message, code, final=True)

    def close(self):
        self._call("close", final=True)

    def is_cancelled(self):
        assert not self.finals, "tritonserver would be dead now"
        return True


def frame(sequence, text, reason=None):
    return Frame(sequence, sequence, (1,), text, 100, reason)


def test_frames_in_order_and_final_with_the_last():
    responder = Responder()
    path = ResponsePath(responder, Outputs(), prefix="Q: ")
    path.send(frame(0, "a"))
    path.send(frame(1, "b", FinishReason.STOP))
    assert responder.calls == [("send", b"Q: a"), ("send", b"b")]
    assert responder.finals == 1


def test_after_final_nobody_asks_and_nothing_is_sent():
    responder = Responder()
    path = ResponsePath(responder, Outputs())
    assert path.is_cancelled()
    path.send(frame(0, "a", FinishReason.STOP))
    assert not path.is_cancelled()
    path.close()
    with pytest.raises(RuntimeError, match="after FINAL"):
        path.send(frame(1, "b"))
    assert responder.finals == 1


def test_a_final_that_failed_is_made_up_for_by_close():
    responder = Responder(fails=1)
    path = ResponsePath(responder, Outputs())
    with pytest.raises(RuntimeError, match="broken"):
        path.send(frame(0, "a", FinishReason.STOP))
    path.close()
    path.close()
    assert responder.calls == [("close",)]


def test_a_refusal_is_final():
    responder = Responder()
    path = ResponsePath(responder, Outputs())
    path.refuse("text_input: empty", ErrorCode.INVALID_ARG)
    assert not path.is_cancelled()
    assert responder.calls == [("error", "text_input: empty", ErrorCode.INVALID_ARG)]


def test_the_stream_id_comes_with_the_first_frame_of_a_connection_and_with_the_last():
    responder = Responder()
    path = ResponsePath(responder, Outputs(), stream_id="ab")
    for sequence in (5, 6, 7):
        path.send(frame(sequence, "a"))
    path.send(frame(8, "b", FinishReason.DETACHED))
    assert [("stream_id" in names) for names in responder.names] == [True, False, False, True]
