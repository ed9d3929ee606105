"""Envoy's configuration for one stack: envoy/envoy.yaml with other addresses and, for tests, other times."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from sluiceway.cli.ports import LOOPBACK, Ports
from sluiceway.cli.setup import REPOSITORY, Tools

ENVOY_YAML = REPOSITORY / "envoy" / "envoy.yaml"
_TCP_USER_TIMEOUT = 18


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvoyOverrides:
    """What a test or a benchmark may change; None leaves the file's value. Times in seconds.

    listener_address: where clients connect (a network namespace's address, for instance).
    flush_interval_s: between two records of a stream. ping_*: the client side's HTTP/2 keepalive.
    tcp_user_timeout_s: the listener's. stream_idle_timeout_s: a stream on which nothing moves.
    concurrency: worker threads. keep_request_id: clients name their streams (x-request-id); else Envoy alone does.
    """

    listener_address: str = LOOPBACK
    flush_interval_s: float | None = None
    ping_interval_s: float | None = None
    ping_timeout_s: float | None = None
    tcp_user_timeout_s: float | None = None
    stream_idle_timeout_s: float | None = None
    concurrency: int = 1
    keep_request_id: bool = False


def render(source: Path, ports: Ports, overrides: EnvoyOverrides) -> dict[str, Any]:
    """The parsed ``source`` with ``ports`` and ``overrides`` put in. Raises ValueError if a part is missing."""
    config: dict[str, Any] = yaml.safe_load(source.read_text())
    _set_address(config["admin"], LOOPBACK, ports.envoy_admin)
    resources = config["static_resources"]
    listener = _named(resources["listeners"], "clients", source)
    _set_address(listener, overrides.listener_address, ports.envoy)
    for cluster, port in (("triton", ports.triton_grpc), ("gateway", ports.gateway), ("access_log", ports.als)):
        for endpoint in _endpoints(_named(resources["clusters"], cluster, source)):
            _set_address(endpoint, LOOPBACK, port)

    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    keepalive = manager["http2_protocol_options"]["connection_keepalive"]
    for target, key, value in (
        (manager["access_log_options"], "access_log_flush_interval", overrides.flush_interval_s),
        (keepalive, "interval", overrides.ping_interval_s),
        (keepalive, "timeout", overrides.ping_timeout_s),
        (manager, "stream_idle_timeout", overrides.stream_idle_timeout_s),
    ):
        if value is not None:
            target[key] = f"{value:.3f}s"
    if overrides.keep_request_id:
        manager["preserve_external_request_id"] = True
    if overrides.tcp_user_timeout_s is not None:
        for option in listener["socket_options"]:
            if option["name"] == _TCP_USER_TIMEOUT:
                option["int_value"] = round(overrides.tcp_user_timeout_s * 1000)
    return config


def write_config(
    run_dir: Path,
    ports: Ports,
    overrides: EnvoyOverrides,
    make: Callable[[Ports], Mapping[str, Any]] | None = None,
) -> Path:
    """make: another configuration than ours."""
    config = render(ENVOY_YAML, ports, overrides) if make is None else make(ports)
    path = run_dir / "envoy.json"  # JSON is YAML, without anchors
    path.write_text(json.dumps(config, indent=1))
    return path


def command(tools: Tools, config: Path, overrides: EnvoyOverrides) -> list[str]:
    return [
        str(tools.envoy),
        "--config-path",
        str(config),
        "--concurrency",
        str(overrides.concurrency),
        "--disable-hot-restart",  # otherwise it leaves regions in /dev/shm
        "--log-level",
        "warning",
    ]


def _named(items: list[dict[str, Any]], name: str, source: Path) -> dict[str, Any]:
    for item in items:
        if item.get("name") == name:
            return item
    raise ValueError(f"{source} has no listener or cluster named {name!r}")


def _endpoints(cluster: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for group in cluster["load_assignment"]["endpoints"]:
        for entry in group["lb_endpoints"]:
            yield entry["endpoint"]


def _set_address(holder: dict[str, Any], address: str, port: int) -> None:
    holder["address"]["socket_address"] = {"address": address, "port_value": port}
