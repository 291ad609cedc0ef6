"""The control plane as a pure state machine: events in, actions out, no clock and no I/O."""
