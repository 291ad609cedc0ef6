"""Socket options between two hosts: sockets.py's parts.

cases    the ways that are compared, on which links, and the claims that are judged: as data
rank     an end of the connections, in a host of its own      moves   what both ends do
watch    cuts of a cable, and which idle connections survive  report  tables and verdicts
"""
