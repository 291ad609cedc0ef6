"""The cluster's authority: one key that vouches for its nodes, on the coordinator's disk alone.

    authority   CN cluster · O cluster id            signs, and nothing else; never renewed
        │ signs
    node        CN node · O cluster id · OU coordinator | member
                client and server · 400 days by the coordinator's clock

The authority's own dates mean nothing (2000 to 9999): clocks of machines may be wrong, and a token
names this very certificate by its digest. ECDSA with P-256 everywhere.

A signing request comes from a machine of which only its token is known. Only the public key of it
is taken; the names in the certificate are the ones the coordinator has decided on.
"""

from __future__ import annotations

import datetime
import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from wiiiiided.cluster.trust.certificate import PEM_CHARS, VALID_S, Certificate, Role, der_of
from wiiiiided.errors import HostError, UsageError

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

AHEAD_S = 86400.0  # a certificate is valid from a day before: a reader's clock may be behind


@dataclass(frozen=True)
class Authority:
    """The authority's certificate (PEM) and its private key."""

    certificate: str
    key: str = field(repr=False)

    @classmethod
    def create(cls, cluster: str, cluster_id: str) -> Authority:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec

        key = ec.generate_private_key(ec.SECP256R1())
        name = _name(cluster, cluster_id)
        identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        builder = (
            self_issued(key, name)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .add_extension(identifier, critical=False)
        )
        return cls(_pem(builder.sign(key, hashes.SHA256())), private_pem(key))

    @classmethod
    def load(cls, directory: Path) -> Authority:
        try:
            texts = [(directory / name).read_text() for name in ("authority.pem", "authority.key")]
        except OSError as problem:
            raise HostError(
                f"the cluster's authority cannot be read ({problem.filename}: {problem.strerror}): "
                "no machine can join and no certificate can be renewed. Restore it from a copy"
            ) from problem
        return cls(*texts)

    @property
    def digest(self) -> bytes:
        """The digest a token knows this authority by."""
        return hashlib.sha256(der_of(self.certificate)).digest()

    def sign(self, csr_pem: str, node: str, role: Role, now: float) -> Certificate:
        """A certificate for the holder of that request's key; UsageError: it is not sound."""
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.x509 import oid

        ours = x509.load_pem_x509_certificate(self.certificate.encode())
        (organization,) = ours.subject.get_attributes_for_oid(x509.NameOID.ORGANIZATION_NAME)
        until = float(int(now + VALID_S))  # certificates know whole seconds
        key = _requested_key(csr_pem, node)
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._private().public_key())
        identifier = x509.SubjectKeyIdentifier.from_public_key(key)
        usages = [oid.ExtendedKeyUsageOID.CLIENT_AUTH, oid.ExtendedKeyUsageOID.SERVER_AUTH]
        builder = (
            x509.CertificateBuilder(ours.subject, _name(node, str(organization.value), role))
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(_date(now - AHEAD_S))
            .not_valid_after(_date(until))
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(identifier, critical=False)
            .add_extension(authority, critical=False)
        )
        return Certificate(_pem(builder.sign(self._private(), hashes.SHA256())), until)

    def _private(self) -> ec.EllipticCurvePrivateKey:
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        try:
            key = load_pem_private_key(self.key.encode(), None)
        except ValueError:
            key = None
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise HostError("authority.key is damaged: restore it from a copy")
        return key


def self_issued(key: ec.EllipticCurvePrivateKey, name: x509.Name) -> x509.CertificateBuilder:
    """A certificate for its own key, valid at any date."""
    from cryptography import x509

    return (
        x509.CertificateBuilder(subject_name=name, issuer_name=name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC))
        .not_valid_after(datetime.datetime(9999, 12, 31, tzinfo=datetime.UTC))
    )


def private_pem(key: ec.EllipticCurvePrivateKey) -> str:
    from cryptography.hazmat.primitives import serialization as s

    return key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.NoEncryption()).decode()


def _requested_key(csr_pem: str, node: str) -> ec.EllipticCurvePublicKey:
    """The public key of a request that is sound and has this node's name."""
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec

    try:
        if len(csr_pem) > PEM_CHARS:
            raise ValueError("too long")
        request = x509.load_pem_x509_csr(csr_pem.encode())
        key, is_signed = request.public_key(), request.is_signature_valid
        names = [str(one.value) for one in request.subject.get_attributes_for_oid(_common_name())]
    except (ValueError, TypeError, UnsupportedAlgorithm, InvalidSignature):
        raise UsageError("the certificate signing request cannot be read") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name != "secp256r1":
        raise UsageError("the certificate signing request is not for an ECDSA key with P-256")
    if not is_signed:
        raise UsageError("the certificate signing request is not signed with its own key")
    if names != [node]:
        raise UsageError(f"the certificate signing request is not in the name of {node}")
    return key


def _common_name() -> x509.ObjectIdentifier:
    from cryptography import x509

    return x509.NameOID.COMMON_NAME


def _name(common: str, organization: str, unit: str = "") -> x509.Name:
    from cryptography import x509

    parts = [(x509.NameOID.COMMON_NAME, common), (x509.NameOID.ORGANIZATION_NAME, organization)]
    if unit:
        parts.append((x509.NameOID.ORGANIZATIONAL_UNIT_NAME, unit))
    return x509.Name([x509.NameAttribute(oid, value) for oid, value in parts])


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _date(at: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(int(at), datetime.UTC)


def _pem(certificate: x509.Certificate) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM).decode()
