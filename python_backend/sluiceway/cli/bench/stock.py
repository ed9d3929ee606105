"""What people have today: Triton's own HTTP frontend behind an Envoy with nothing set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sluiceway.cli.ports import LOOPBACK, Ports

_TYPE = "type.googleapis.com/envoy.extensions.filters"


def settings() -> dict[str, Any]:
    """For StackSettings."""
    return {"triton_http": True, "envoy_config": envoy_config, "gateway": False}


def envoy_config(ports: Ports) -> Mapping[str, Any]:
    """One listener, one route without a time limit, one cluster; every buffer and window as Envoy has it."""
    manager = {
        "@type": f"{_TYPE}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "stock",
        "http_filters": [
            {"name": "router", "typed_config": {"@type": f"{_TYPE}.http.router.v3.Router"}},
        ],
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "all",
                    "domains": ["*"],
                    "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "triton", "timeout": "0s"}}],
                }
            ]
        },
    }
    listener = {
        "name": "clients",
        "address": _address(ports.envoy),
        "filter_chains": [{"filters": [{"name": "http", "typed_config": manager}]}],
    }
    cluster = {
        "name": "triton",
        "type": "STATIC",
        "load_assignment": {
            "cluster_name": "triton",
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": _address(ports.gateway)}}]}],
        },
    }
    return {
        "admin": {"address": _address(ports.envoy_admin)},
        "static_resources": {"listeners": [listener], "clusters": [cluster]},
    }


def _address(port: int) -> dict[str, Any]:
    return {"socket_address": {"address": LOOPBACK, "port_value": port}}
