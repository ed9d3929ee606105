"""One generation on one WebSocket, with acks, pauses and questions for levels."""
