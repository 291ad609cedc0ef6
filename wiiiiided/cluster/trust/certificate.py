"""A certificate as the other modules pass it on: its text, its fingerprint, when to renew it.

    -----BEGIN CERTIFICATE-----  ─► DER ─► SHA-256, hexadecimal: what `members` knows a node by

Nothing is parsed here, so nothing large has to be loaded for it.
"""

from __future__ import annotations

import hashlib
import re
import ssl
from dataclasses import dataclass
from typing import Final, Literal

from wiiiiided.errors import UsageError

Role = Literal["coordinator", "member"]

VALID_S: Final = 400 * 86400.0  # of a node's certificate
PEM_CHARS: Final = 16 << 10  # the most that a certificate or request has

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


@dataclass(frozen=True)
class Certificate:
    """A node's certificate. `until` is by the coordinator's clock, seconds since 1970."""

    pem: str
    until: float

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(der_of(self.pem)).hexdigest()


def der_of(pem: str) -> bytes:
    """The bytes of the one certificate in a text; UsageError: there is none."""
    try:
        if len(pem) > PEM_CHARS:
            raise ValueError("too long")
        return ssl.PEM_cert_to_DER_cert(pem.strip())
    except ValueError:
        raise UsageError("the bytes sent as a certificate are not one") from None


def is_due(until: float, now: float) -> bool:
    """Whether a certificate renewal is due: less than a third of its time is left."""
    return until - now < VALID_S / 3


def check_name(name: str, what: str, option: str) -> str:
    """A name that may be in certificates, job files, paths and rows of a table."""
    if _NAME.fullmatch(name):
        return name
    raise UsageError(
        f"{name[:80]!r} cannot be the name of a {what}: 1 to 63 letters, digits, dots, dashes and "
        f"underscores, beginning with a letter or digit ({option})"
    )
