"""Collectives between hosts: two_hosts.py's parts.

speed    wiiiiide against gloo and against the link     cost     what settings and memory cost
rig      sides that are alive on the hosts, in turns    cells    what they did, as a row of a table
rank     a rank of one side                             task     what it does
buffers  a task's data and the check of its result      memory   what ranks and sockets hold
iperf    what the link allows
"""
