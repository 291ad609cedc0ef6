"""The token an operator carries to a machine that is to join.

    wiiiiide1.<72 characters, base64url>
              ├─ 32 B  SHA-256 of the authority's certificate: which to trust
              ├─  6 B  id: which token
              └─ 16 B  secret: sent only to a peer with that certificate

The coordinator keeps the secret's SHA-256 only. It has 128 random bits, so no slow hash is needed.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import secrets
from dataclasses import dataclass, field
from typing import Final

from wiiiiided.errors import UsageError

PREFIX: Final = "wiiiiide1."
DIGEST_BYTES, ID_BYTES, SECRET_BYTES = 32, 6, 16
CHARS: Final = (DIGEST_BYTES + ID_BYTES + SECRET_BYTES) * 4 // 3


@dataclass(frozen=True)
class Token:
    digest: bytes  # of the authority's certificate
    id: bytes
    secret: bytes = field(repr=False)

    @classmethod
    def create(cls, digest: bytes) -> Token:
        return cls(digest, secrets.token_bytes(ID_BYTES), secrets.token_bytes(SECRET_BYTES))

    @property
    def text(self) -> str:
        raw = self.digest + self.id + self.secret
        return PREFIX + base64.urlsafe_b64encode(raw).decode()

    @classmethod
    def parse(cls, text: str) -> Token:
        """UsageError, which never repeats the text, when it is no token."""
        text = text.strip()
        if not text.startswith(PREFIX):
            raise UsageError(
                f"this is no token: one begins with {PREFIX!r}. wiiiiide token create on any "
                "machine of the cluster prints one"
            )
        try:
            raw = base64.b64decode(text[len(PREFIX) :], altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            raw = b""
        if len(raw) != DIGEST_BYTES + ID_BYTES + SECRET_BYTES:
            raise UsageError(
                f"this token is damaged: after {PREFIX!r} come {CHARS} letters, digits, dashes and "
                "underscores. Copy it once more, whole"
            )
        end = DIGEST_BYTES + ID_BYTES
        return cls(raw[:DIGEST_BYTES], raw[DIGEST_BYTES:end], raw[end:])


def hash_of(secret: bytes) -> str:
    """The digest of a secret that the coordinator's store keeps."""
    return hashlib.sha256(secret).hexdigest()
