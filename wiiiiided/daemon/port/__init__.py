"""The one port of a machine: who comes in, and to whom the connection is passed on."""
