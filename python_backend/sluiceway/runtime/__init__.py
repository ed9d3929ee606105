"""The shells around the core: threads, clock, Triton, configuration. Nothing here decides about a stream."""
