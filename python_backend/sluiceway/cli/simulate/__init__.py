"""Streams on paper: the same core and scheduler against a cost model instead of a machine."""
