"""Which job runs where: control plane, daemon, shims, and what they say to each other."""
