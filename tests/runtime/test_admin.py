from __future__ import annotations

import json
import urllib.error
import urllib.request

import pytest

from sluiceway.runtime.admin import AdminServer
from sluiceway.runtime.errors import ConfigError


class Service:
    drained = False

    def statistics(self):
        return {"now": 1.0}

    def finished_since(self, n):
        if n > 99:
            raise TimeoutError
        return {"next": n, "finished": []}

    def drain(self):
        self.drained = True


@pytest.fixture
def service():
    return Service()


@pytest.fixture
def call(service):
    server = AdminServer("127.0.0.1:0", service)
    server.start()
    port = server._server.server_address[1]

    def call(method, path):
        request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method)
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    yield call
    server.stop()


def test_pages(call, service):
    assert call("GET", "/statistics") == (200, {"now": 1.0})
    assert call("GET", "/finished?since=7") == (200, {"next": 7, "finished": []})
    assert call("GET", "/finished") == (200, {"next": 0, "finished": []})
    assert call("POST", "/drain") == (200, {"drained": True})
    assert service.drained


@pytest.mark.parametrize("since", ["-1", "x", "1.5", "9" * 30, "%C2%B2"])
def test_a_wrong_number_is_named(call, since):
    assert call("GET", f"/finished?since={since}") == (400, {"error": "since: must be a whole number, 0 or more"})


def test_what_there_is_is_said(call, service):
    assert call("GET", "/drain")[0] == 404
    assert call("POST", "/statistics") == (404, {"error": "known: POST /drain"})
    assert not service.drained


def test_a_backend_that_does_not_answer_is_no_empty_page(call):
    status, answer = call("GET", "/finished?since=100")
    assert (status, "does not answer" in answer["error"]) == (503, True)


def test_a_taken_address_is_named():
    server = AdminServer("127.0.0.1:0", Service())
    port = server._server.server_address[1]
    with pytest.raises(ConfigError, match=rf"admin\.listen: cannot listen on 127\.0\.0\.1:{port}"):
        AdminServer(f"127.0.0.1:{port}", Service())
    server.close()
