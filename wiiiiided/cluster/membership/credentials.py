"""This machine's name and certificate in a cluster, as its connections use them now.

    identity ──► server context   the port mux shows it to callers
             └─► client context   the dialer shows it to daemons it calls

A renewed certificate takes the place of the old one here: contexts are made anew, connections that
stand go on.
"""

from __future__ import annotations

import ssl

from wiiiiided.cluster.trust.certificate import Certificate
from wiiiiided.cluster.trust.identity import Identity, replace_certificate
from wiiiiided.cluster.trust.signing_request import new_request
from wiiiiided.cluster.trust.tls import client_context, server_context


class Credentials:
    """The key and certificate of one machine. `identity` is as it lies on the disk."""

    def __init__(self, identity: Identity) -> None:
        self.identity = identity
        self._server: ssl.SSLContext | None = None
        self._client: ssl.SSLContext | None = None
        self._asked: tuple[str, str] | None = None  # key and request of a renewal under way

    def server(self) -> ssl.SSLContext:
        if self._server is None:
            self._server = server_context(self.identity)
        return self._server

    def client(self) -> ssl.SSLContext:
        if self._client is None:
            self._client = client_context(self.identity)
        return self._client

    def request(self) -> str:
        """The request to be signed for a new key; the key stays here until it is."""
        if self._asked is None:
            self._asked = new_request(self.identity.node)
        return self._asked[1]

    def renewed(self, certificate: Certificate) -> None:
        """A certificate for the last `request` has come."""
        if self._asked is not None:
            key, self._asked = self._asked[0], None
            self.take(replace_certificate(self.identity, key, certificate))

    def take(self, identity: Identity) -> None:
        """Take a new certificate of the same machine."""
        self.identity = identity
        self._server = self._client = None
