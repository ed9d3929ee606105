"""Clients of every habit and protocol: on raw connections with flow control of their own, on grpcio, in processes."""

from sluiceway.cli.bench.readers.ack_reader import AckReader
from sluiceway.cli.bench.readers.grpc_reader import DEFAULT, NO_BDP_PROBE, SMALL_WINDOW, GrpcReader
from sluiceway.cli.bench.readers.loop import ReaderLoop
from sluiceway.cli.bench.readers.policy import (
    Alternate,
    Bursts,
    Dribble,
    Never,
    Normal,
    Rate,
    ReadingPolicy,
    StopAfter,
)
from sluiceway.cli.bench.readers.process import ClientPlan, ReaderProcess
from sluiceway.cli.bench.readers.protocols import OVER_HTTP1
from sluiceway.cli.bench.readers.reading import Reading, Stream
from sluiceway.cli.bench.readers.transport import ConnectionSettings, Leave
from sluiceway.cli.bench.readers.wire import StreamRequest

__all__ = [
    "DEFAULT",
    "NO_BDP_PROBE",
    "OVER_HTTP1",
    "SMALL_WINDOW",
    "AckReader",
    "Alternate",
    "Bursts",
    "ClientPlan",
    "ConnectionSettings",
    "Dribble",
    "GrpcReader",
    "Leave",
    "Never",
    "Normal",
    "Rate",
    "ReaderLoop",
    "ReaderProcess",
    "Reading",
    "ReadingPolicy",
    "StopAfter",
    "Stream",
    "StreamRequest",
]
