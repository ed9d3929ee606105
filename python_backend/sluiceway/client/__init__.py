"""A client that says what it has read: gRPC with acks, resume and small windows (docs/client.md)."""

from sluiceway.client.aio import AsyncClient, AsyncGeneration
from sluiceway.client.frames import Frame, GenerateRequest, GenerationError, Slow
from sluiceway.client.sync import Client, Generation

__all__ = [
    "AsyncClient",
    "AsyncGeneration",
    "Client",
    "Frame",
    "GenerateRequest",
    "Generation",
    "GenerationError",
    "Slow",
]
