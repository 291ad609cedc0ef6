"""How tensors move: collectives, the engine that runs them, shared memory, the network, codecs."""
