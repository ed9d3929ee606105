"""The HTTP side: OpenAI's API, Triton's generate and WebSocket, spoken to Triton over gRPC with acks."""
