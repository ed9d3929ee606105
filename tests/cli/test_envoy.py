from __future__ import annotations

import json

import pytest
import yaml

from sluiceway.cli.envoy import ENVOY_YAML, EnvoyOverrides, render, write_config
from sluiceway.cli.ports import Ports
from sluiceway.cli.triton import command as triton_command

PORTS = Ports(envoy=1001, envoy_admin=1002, triton_grpc=1003, triton_metrics=1004, als=1005, admin=1006, gateway=1007)


def manager_of(config):
    return config["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]


def ports_in(node):
    if isinstance(node, dict):
        if "port_value" in node:
            yield node["port_value"], node["address"]
        for value in node.values():
            yield from ports_in(value)
    elif isinstance(node, list):
        for value in node:
            yield from ports_in(value)


def test_the_file_itself_has_the_default_ports():
    assert render(ENVOY_YAML, Ports.default(), EnvoyOverrides()) == yaml.safe_load(ENVOY_YAML.read_text())


def test_every_port_is_replaced_and_stays_on_loopback():
    found = set(ports_in(render(ENVOY_YAML, PORTS, EnvoyOverrides())))
    assert found == {(port, "127.0.0.1") for port in (1001, 1002, 1003, 1005, 1007)}


def test_overrides_change_their_own_values_alone():
    plain = render(ENVOY_YAML, PORTS, EnvoyOverrides())
    changed = render(
        ENVOY_YAML,
        PORTS,
        EnvoyOverrides(
            listener_address="10.0.0.1",
            flush_interval_s=0.05,
            ping_interval_s=2,
            ping_timeout_s=4.5,
            tcp_user_timeout_s=7,
            stream_idle_timeout_s=33,
        ),
    )
    manager = manager_of(changed)
    assert manager["access_log_options"]["access_log_flush_interval"] == "0.050s"
    assert manager["http2_protocol_options"]["connection_keepalive"] == {"interval": "2.000s", "timeout": "4.500s"}
    assert manager["stream_idle_timeout"] == "33.000s"
    listener = changed["static_resources"]["listeners"][0]
    assert listener["address"]["socket_address"] == {"address": "10.0.0.1", "port_value": 1001}
    assert [o["int_value"] for o in listener["socket_options"] if o["description"] == "TCP_USER_TIMEOUT"] == [7000]
    assert changed["static_resources"]["clusters"] == plain["static_resources"]["clusters"]


def test_a_file_without_the_listener_is_refused_by_name(tmp_path):
    config = yaml.safe_load(ENVOY_YAML.read_text())
    config["static_resources"]["listeners"][0]["name"] = "other"
    source = tmp_path / "envoy.yaml"
    source.write_text(yaml.safe_dump(config))
    with pytest.raises(ValueError, match="no listener or cluster named 'clients'"):
        render(source, PORTS, EnvoyOverrides())


def test_written_file_is_what_was_rendered(tmp_path):
    path = write_config(tmp_path, PORTS, EnvoyOverrides())
    assert json.loads(path.read_text()) == render(ENVOY_YAML, PORTS, EnvoyOverrides())


def test_windows_hold_the_stuck_streams_that_may_share_a_connection():
    clusters = render(ENVOY_YAML, PORTS, EnvoyOverrides())["static_resources"]["clusters"]
    (triton,) = (cluster for cluster in clusters if cluster["name"] == "triton")
    (protocol,) = triton["typed_extension_protocol_options"].values()
    http2 = protocol["explicit_http_config"]["http2_protocol_options"]
    streams = triton["circuit_breakers"]["thresholds"][0]["max_requests"]
    assert http2["initial_connection_window_size"] >= streams * http2["initial_stream_window_size"]
    assert http2["max_concurrent_streams"] >= streams


def test_order_of_clocks():
    listener = render(ENVOY_YAML, PORTS, EnvoyOverrides())["static_resources"]["listeners"][0]
    manager = manager_of(render(ENVOY_YAML, PORTS, EnvoyOverrides()))
    seconds = {
        "ping": sum(
            float(manager["http2_protocol_options"]["connection_keepalive"][part].rstrip("s"))
            for part in ("interval", "timeout")
        ),
        "tcp": next(o["int_value"] for o in listener["socket_options"] if o["name"] == 18) / 1000,
        "idle": float(manager["stream_idle_timeout"].rstrip("s")),
        "duration": float(manager["common_http_protocol_options"]["max_stream_duration"].rstrip("s")),
    }
    model = yaml.safe_load((ENVOY_YAML.parents[1] / "model_repository/llm/sluiceway.yaml").read_text())
    ours = model["flow_control"]["max_silence_s"]
    assert ours < seconds["ping"] < seconds["tcp"] < seconds["idle"] < seconds["duration"]


def test_triton_allows_envoys_pings():
    clusters = render(ENVOY_YAML, PORTS, EnvoyOverrides())["static_resources"]["clusters"]
    (protocol,) = clusters[0]["typed_extension_protocol_options"].values()
    keepalive = protocol["explicit_http_config"]["http2_protocol_options"]["connection_keepalive"]
    arguments = triton_command(_Tools, repository="r", backends="b", ports=PORTS, shm_prefix="p", exit_timeout_s=8)
    (minimum,) = (a.partition("=")[2] for a in arguments if a.startswith("--grpc-http2-min-recv-ping-interval"))
    assert int(minimum) < 1000 * float(keepalive["interval"].rstrip("s"))


class _Tools:
    tritonserver = "tritonserver"
