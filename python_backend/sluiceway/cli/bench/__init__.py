"""The bench: each promise of the README as one command, baselines beside it in the same run."""
