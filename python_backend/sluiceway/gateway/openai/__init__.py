"""OpenAI's HTTP API: chat completions, completions, models."""
