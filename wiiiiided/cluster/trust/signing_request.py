"""A new private key, and the request that travels instead of it; or a certificate of its own.

key ── stays on this machine's disk, 0600
 ├──► request: public key, CN = the node's name, signed with the key ──► authority
 └──► self-signed, where its owner is proved otherwise: the Store of one attempt
"""

from __future__ import annotations


def new_request(node: str) -> tuple[str, str]:
    """A private key and a certificate signing request for it, both PEM."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding

    from wiiiiided.cluster.trust.authority import private_pem

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, node)])
    request = x509.CertificateSigningRequestBuilder(name).sign(key, hashes.SHA256())
    return private_pem(key), request.public_bytes(Encoding.PEM).decode()


def self_signed() -> str:
    """A private key and a certificate for it, PEM. Its dates and its name mean nothing."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding

    from wiiiiided.cluster.trust.authority import private_pem, self_issued

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "wiiiiide")])
    certificate = self_issued(key, name).sign(key, hashes.SHA256())
    return private_pem(key) + certificate.public_bytes(Encoding.PEM).decode()
