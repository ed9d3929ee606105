"""Pure state machines, standard library only: no clock, threads, I/O, logging or third-party import."""
