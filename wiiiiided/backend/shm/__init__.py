"""One host's shared memory: segments, the board ranks signal on, slots, kernels, counters."""
