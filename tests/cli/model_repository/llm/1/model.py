"""Streams "word " every 50 ms, as often as the text says, one thread per request."""

import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils

WORD = np.array([b"word "], dtype=np.object_)


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            text = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy()[0]
            threading.Thread(target=self.stream, args=(request.get_response_sender(), int(text)), daemon=True).start()

    def stream(self, sender, count):
        for _ in range(count):
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("text_output", WORD)]))
            time.sleep(0.05)
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
