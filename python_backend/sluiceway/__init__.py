"""Sluiceway: a streamed LLM answer that knows whether its reader reads."""

__version__ = "0.1.0"
