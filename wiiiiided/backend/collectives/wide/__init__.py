"""The collectives of a group on several hosts: through shared memory inside, wire between."""
