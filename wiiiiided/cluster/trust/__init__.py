"""Which machines belong to the cluster: its authority, certificates, tokens, and where they lie.

    authority    signs the certificates of the cluster's nodes           (coordinator)
    request      a new private key and what is to be signed for it       (every node, never leaves)
    token        what an operator carries to a machine that is to join
    identity     what this machine is in which cluster, on its disk
    tls          the contexts in which daemons meet, and the identity of a peer

The package `cryptography` is loaded where something is made or signed, never to look at what there
is: a daemon that only runs does without its memory.
"""
