"""What the gateway counts, for Prometheus. Labels are bounded: a handler's name, a protocol, a status."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "sluiceway_gateway_requests",
            "Requests that ended; status 0: the client left before there was one.",
            ["route", "protocol", "status"],
            registry=self.registry,
        )
        self.open_requests = Gauge(
            "sluiceway_gateway_open_requests", "Requests that are open.", ["protocol"], registry=self.registry
        )
        self.open_streams = Gauge(
            "sluiceway_gateway_open_streams", "Generations that are open at Triton.", registry=self.registry
        )
        self.disconnects = Counter(
            "sluiceway_gateway_disconnects", "Clients that left before their answer ended.", registry=self.registry
        )
        self.first_byte = Histogram(
            "sluiceway_gateway_first_byte_seconds",
            "From the request to the status of its answer.",
            ["route"],
            buckets=(0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100),
            registry=self.registry,
        )

    def exposition(self) -> bytes:
        return generate_latest(self.registry)
