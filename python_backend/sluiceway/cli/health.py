"""Is a part of the stack ready? Every check is one bounded request; False for any failure."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

import grpc

from sluiceway.cli.ports import LOOPBACK

_TIMEOUT_S = 2.0
_READY = b"\x08\x01"  # ServerReadyResponse{ready: true}


def triton_is_ready(grpc_port: int) -> bool:
    """Every model of the repository is loaded."""
    with grpc.insecure_channel(f"{LOOPBACK}:{grpc_port}") as channel:
        try:
            answer = channel.unary_unary("/inference.GRPCInferenceService/ServerReady")(b"", timeout=_TIMEOUT_S)
        except grpc.RpcError:
            return False
    return bool(answer == _READY)


def envoy_is_ready(admin_port: int) -> bool:
    try:
        return request(admin_port, "/ready").strip() == b"LIVE"
    except OSError:
        return False


def backend_is_ready(admin_port: int) -> bool:
    try:
        get_json(admin_port, "/statistics")
    except (OSError, ValueError):
        return False
    return True


def gateway_is_ready(port: int) -> bool:
    """It serves, and reaches Triton."""
    try:
        request(port, "/readyz")
    except OSError:
        return False
    return True


def envoy_open_streams(admin_port: int) -> int:
    """Requests that clients have open at Envoy. Raises OSError."""
    counters = get_json(admin_port, "/stats?format=json&filter=^http\\.clients\\.downstream_rq_active$")
    return sum(int(entry.get("value", 0)) for entry in counters["stats"])


def get_json(port: int, path: str) -> dict[str, Any]:
    """Raises OSError, or ValueError if the answer is no JSON object."""
    answer = json.loads(request(port, path))
    if not isinstance(answer, dict):
        raise ValueError(f"{path} answered {type(answer).__name__}, not an object")
    return answer


def request(port: int, path: str, *, method: str = "GET", timeout_s: float = _TIMEOUT_S) -> bytes:
    """Raises OSError (urllib's errors are OSErrors)."""
    message = urllib.request.Request(f"http://{LOOPBACK}:{port}{path}", method=method)
    try:
        with urllib.request.urlopen(message, timeout=timeout_s) as answer:  # noqa: S310
            content: bytes = answer.read()
    except urllib.error.HTTPError as error:
        error.close()
        raise OSError(f"{path} answered {error.code}") from None
    return content
