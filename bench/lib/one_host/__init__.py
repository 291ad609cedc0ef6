"""Collectives between processes of one host: one_host.py's parts.

cells       operations, sizes, contenders and targets: as data      report   tables of these
buffers     an operation's buffers, the loop that times it, and the check of its result
torch_rank  gloo, wiiiiide, shared_empty and memcpy                 mpi_rank Open MPI
"""
