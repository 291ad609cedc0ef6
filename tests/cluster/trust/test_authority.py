"""What the authority signs, for which node, and what it does not."""

from __future__ import annotations

import hashlib
import ssl
import time
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from tests.cluster.trust.kit import DAY_S
from wiiiiided.cluster.trust.authority import Authority
from wiiiiided.cluster.trust.certificate import VALID_S, is_due
from wiiiiided.cluster.trust.signing_request import new_request
from wiiiiided.errors import HostError, UsageError

NOW = 1_800_000_000.0


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority.create("lab", "00ff00ff00ff00ff")


def request_of(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey, *names: str) -> str:
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name) for name in names])
    built = x509.CertificateSigningRequestBuilder(subject).sign(key, hashes.SHA256())
    return built.public_bytes(serialization.Encoding.PEM).decode()


def test_a_certificate_names_node_role_and_cluster_and_nothing_that_was_asked_for(
    authority: Authority,
) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    wish = (
        x509.CertificateSigningRequestBuilder(
            x509.Name(
                [
                    x509.NameAttribute(x509.NameOID.COMMON_NAME, "b"),
                    x509.NameAttribute(x509.NameOID.ORGANIZATIONAL_UNIT_NAME, "coordinator"),
                ]
            )
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    asked = wish.public_bytes(serialization.Encoding.PEM).decode()
    made = x509.load_pem_x509_certificate(authority.sign(asked, "b", "member", NOW).pem.encode())
    assert made.subject.rfc4514_string() == "OU=member,O=00ff00ff00ff00ff,CN=b"
    assert made.issuer.rfc4514_string() == "O=00ff00ff00ff00ff,CN=lab"
    assert not made.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    usages = made.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert {one._name for one in usages} == {"clientAuth", "serverAuth"}
    assert made.public_key() == key.public_key()


def test_a_certificate_is_valid_for_400_days_by_the_clock_it_was_made_with(
    authority: Authority,
) -> None:
    _, request = new_request("b")
    made = authority.sign(request, "b", "member", NOW + 0.7)
    assert made.until == NOW + 400 * DAY_S
    read = x509.load_pem_x509_certificate(made.pem.encode())
    assert read.not_valid_after_utc.timestamp() == made.until
    assert made.fingerprint == read.fingerprint(hashes.SHA256()).hex()


def test_a_certificate_is_due_when_a_third_is_left() -> None:
    until = NOW + VALID_S
    assert not is_due(until, NOW)
    assert not is_due(until, until - VALID_S / 3)
    assert is_due(until, until - VALID_S / 3 + 1)
    assert is_due(until, until + 1)


@pytest.mark.parametrize("text", ["", "garbage", "é", "x" * 1_000_000])
def test_a_request_that_is_none_is_refused(authority: Authority, text: str) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        authority.sign(text, "b", "member", NOW)


def test_a_damaged_request_is_refused(authority: Authority) -> None:
    _, request = new_request("b")
    lines = request.splitlines()
    for at in range(1, len(lines) - 1):
        cut = "\n".join(lines[:at] + lines[at + 1 :])
        with pytest.raises(UsageError):
            authority.sign(cut, "b", "member", NOW)


def test_a_request_that_its_key_has_not_signed_is_refused(authority: Authority) -> None:
    _, request = new_request("b")
    der = bytearray(ssl.PEM_cert_to_DER_cert(request.replace(" REQUEST", "")))
    other = x509.load_pem_x509_csr(new_request("b")[1].encode()).public_key()
    ours = x509.load_pem_x509_csr(request.encode()).public_key()
    form = (serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    der = der.replace(ours.public_bytes(*form), other.public_bytes(*form))
    forged = ssl.DER_cert_to_PEM_cert(bytes(der)).replace("CERTIFICATE", "CERTIFICATE REQUEST")
    with pytest.raises(UsageError, match="not signed with its own key"):
        authority.sign(forged, "b", "member", NOW)


@pytest.mark.parametrize("names", [("c",), (), ("b", "c"), ("b", "b")])
def test_a_request_in_another_name_is_refused(authority: Authority, names: tuple[str, ...]) -> None:
    request = request_of(ec.generate_private_key(ec.SECP256R1()), *names)
    with pytest.raises(UsageError, match="not in the name of b"):
        authority.sign(request, "b", "member", NOW)


def test_a_request_for_another_kind_of_key_is_refused(authority: Authority) -> None:
    for key in (ec.generate_private_key(ec.SECP384R1()), rsa.generate_private_key(65537, 2048)):
        with pytest.raises(UsageError, match="P-256"):
            authority.sign(request_of(key, "b"), "b", "member", NOW)


def test_the_digest_is_of_the_certificate_itself(authority: Authority) -> None:
    read = x509.load_pem_x509_certificate(authority.certificate.encode())
    der = read.public_bytes(serialization.Encoding.DER)
    assert authority.digest == hashlib.sha256(der).digest()


def test_the_private_key_is_not_in_what_is_printed_of_an_authority(authority: Authority) -> None:
    assert authority.key.splitlines()[1] not in repr(authority)


def test_an_authority_without_its_key_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "authority.pem").write_text("x")
    with pytest.raises(HostError, match=r"authority\.key.*Restore"):
        Authority.load(tmp_path)
    (tmp_path / "authority.key").write_text("x")
    (tmp_path / "authority.pem").write_text(Authority.create("lab", "00").certificate)
    with pytest.raises(HostError, match=r"authority\.key is damaged"):
        Authority.load(tmp_path).sign(new_request("b")[1], "b", "member", time.time())
