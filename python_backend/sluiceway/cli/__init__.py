"""The command line: the stack's supervisor, the demo and the benchmarks."""
