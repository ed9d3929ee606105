from __future__ import annotations

import socket
from dataclasses import replace

import pytest

from sluiceway.cli.ports import LOOPBACK, Ports, PortTakenError, is_free


def test_free_ports_differ_and_lie_outside_the_range_of_outgoing_connections():
    ports = Ports.free()
    numbers = [getattr(ports, name) for name in Ports.__slots__]
    assert len(set(numbers)) == 7
    assert all(1024 < number < 32_768 and is_free(number) for number in numbers)


def test_taken_port_is_named_with_its_option():
    ports = Ports.free()
    with socket.socket() as listener:
        listener.bind((LOOPBACK, ports.triton_grpc))
        listener.listen()
        with pytest.raises(PortTakenError, match=rf"{ports.triton_grpc} \(triton_grpc\).*--triton-grpc-port"):
            ports.require_free()
    ports.require_free()


def test_connection_of_an_earlier_listener_does_not_count_as_taken():
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Envoy and Triton do
        listener.bind((LOOPBACK, 0))
        listener.listen()
        port = listener.getsockname()[1]
        client = socket.create_connection((LOOPBACK, port))
        served, _ = listener.accept()
        served.close()  # the listener's side goes to TIME_WAIT
        client.close()
        assert not is_free(port)
    assert is_free(port)


@pytest.mark.parametrize("wrong", [0, 65_536, -1, "8080", None])
def test_port_out_of_range_is_named(wrong):
    with pytest.raises(ValueError, match=r"--als-port is .*from 1 to 65535"):
        replace(Ports.default(), als=wrong)


def test_one_number_for_two_ports_names_both():
    with pytest.raises(ValueError, match="--admin-port is 8080, which is also --envoy-port"):
        replace(Ports.default(), admin=8080)
