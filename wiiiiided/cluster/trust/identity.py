"""This machine's place in a cluster: a directory that is there whole, or not.

    <state>/cluster/ 0700, every file 0600
        cluster.json      role, names, addresses: Membership below
        authority.pem     the certificate that vouches for all nodes
        node.key          this node's private key, its certificate, and until when that is valid
        authority.key     coordinator: signs
        job-keys.secret   coordinator: 32 bytes, every attempt's key comes from it

Key and certificate are one file: a renewal replaces both in one rename, and no crash can leave a
key with another key's certificate. (OpenSSL takes them so, and skips the line before them.)

A machine without the directory is alone. Nothing here looks at a date.
"""

from __future__ import annotations

import contextlib
import hmac
import secrets
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from wiiiiided.cluster.trust import private_files
from wiiiiided.cluster.trust.authority import Authority
from wiiiiided.cluster.trust.certificate import Certificate, Role, check_name, der_of
from wiiiiided.cluster.trust.signing_request import new_request
from wiiiiided.domain.json_decoder import json_decoder
from wiiiiided.errors import HostError, UsageError

MEMBERSHIP, AUTHORITY, NODE = "cluster.json", "authority.pem", "node.key"
AUTHORITY_KEY, JOB_KEYS = "authority.key", "job-keys.secret"
KEY_BYTES: Final = 32
FILE_BYTES: Final = 64 << 10  # more than any of them can have
IN_A_CLUSTER: Final = "this machine is in a cluster already: wiiiiide leave ends that"

_BEGIN = "-----BEGIN CERTIFICATE-----"


class NodeEndpoint(msgspec.Struct, frozen=True):
    """The address of a node's one port."""

    name: str
    address: str
    port: int

    @property
    def endpoint(self) -> str:
        return endpoint(self.address, self.port)


class ClusterMembership(msgspec.Struct, frozen=True, kw_only=True):
    """cluster.json."""

    role: Role
    cluster: str
    cluster_id: str
    node: str
    address: str  # of this machine's one port
    port: int
    coordinator: NodeEndpoint


_membership = json_decoder(ClusterMembership)


class Identity(ClusterMembership, frozen=True, kw_only=True):
    """A machine's membership, with where it lies and which certificate this node shows."""

    directory: Path
    certificate: Certificate

    @property
    def endpoint(self) -> str:
        return endpoint(self.address, self.port)

    @property
    def authority(self) -> str:
        """The authority's certificate, PEM."""
        return _read(self.directory / AUTHORITY).decode()

    @property
    def key_file(self) -> Path:
        """Private key and certificate, as OpenSSL loads them."""
        return self.directory / NODE

    def attempt_key(self, job: int, attempt: int) -> bytes:
        """Make, on the coordinator, the key that the ranks of an attempt prove to each other's
        daemons."""
        secret = _read(self.directory / JOB_KEYS)
        if len(secret) != KEY_BYTES:
            raise _damaged(self.directory / JOB_KEYS, f"it has {len(secret)} bytes")
        number = job.to_bytes(8, "big") + attempt.to_bytes(4, "big")
        return hmac.digest(secret, b"wiiiiide attempt\0" + number, "sha256")

    @classmethod
    def load(cls, state: Path) -> Identity | None:
        """This machine's identity; None: alone. Remains of an interrupted change are removed."""
        directory = state / private_files.CURRENT
        with _writing(state):
            private_files.remove_leftovers(state)
        return _load(directory) if directory.exists() else None


def endpoint(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def create_cluster(
    state: Path, *, cluster: str, node: str, address: str, port: int, now: float
) -> Identity:
    """Make this machine the coordinator of a new cluster."""
    check_name(cluster, "cluster", "--cluster")
    check_name(node, "node", "give this machine another host name")
    cluster_id = secrets.token_hex(8)
    authority = Authority.create(cluster, cluster_id)
    key, request = new_request(node)
    certificate = authority.sign(request, node, "coordinator", now)
    membership = ClusterMembership(
        role="coordinator",
        cluster=cluster,
        cluster_id=cluster_id,
        node=node,
        address=address,
        port=port,
        coordinator=NodeEndpoint(node, address, port),
    )
    own = {
        AUTHORITY_KEY: authority.key.encode(),
        JOB_KEYS: secrets.token_bytes(KEY_BYTES),
    }
    return _put(state, membership, authority.certificate, key, certificate, own)


def adopt_membership(
    state: Path, membership: ClusterMembership, authority: str, key: str, certificate: Certificate
) -> Identity:
    """Make this machine a member, as the coordinator has said."""
    check_name(membership.cluster, "cluster", "as the coordinator says")
    check_name(membership.cluster_id, "cluster", "as the coordinator says")
    check_name(membership.coordinator.name, "node", "as the coordinator says")
    return _put(state, membership, authority, key, certificate, {})


def replace_certificate(identity: Identity, key: str, certificate: Certificate) -> Identity:
    """A renewed one takes the place of the old, together with its key."""
    new = identity.directory / f"{NODE}.new"
    with _writing(identity.directory):
        new.unlink(missing_ok=True)
        private_files.write(new, _node_file(key, certificate))
        _check_pair(new)
        new.rename(identity.key_file)
        private_files.sync(identity.directory)
    return msgspec.structs.replace(identity, certificate=certificate)


def forget(state: Path) -> None:
    """Leave this machine alone again. Its keys are gone."""
    with _writing(state):
        private_files.take_away(state)


def _put(
    state: Path,
    membership: ClusterMembership,
    authority: str,
    key: str,
    certificate: Certificate,
    own: dict[str, bytes],
) -> Identity:
    if (state / private_files.CURRENT).exists():
        raise UsageError(IN_A_CLUSTER)
    contents = {
        MEMBERSHIP: msgspec.json.format(msgspec.json.encode(membership)),
        AUTHORITY: ssl.DER_cert_to_PEM_cert(der_of(authority)).encode(),
        NODE: _node_file(key, certificate),
        **own,
    }
    with _writing(state):
        try:
            _check_pair(private_files.build(state, contents) / NODE)
            return _load(private_files.put_in_place(state))
        except BaseException:
            private_files.remove_leftovers(state)
            raise


def _node_file(key: str, certificate: Certificate) -> bytes:
    pem = ssl.DER_cert_to_PEM_cert(der_of(certificate.pem))
    return f"until {certificate.until!r}\n{key}{pem}".encode()


def _check_pair(path: Path) -> None:
    """Whether the certificate is for that key."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(path)
    except ssl.SSLError:
        path.unlink()
        raise HostError(
            "the certificate that came back is not for this machine's key: nothing was changed"
        ) from None


def _load(directory: Path) -> Identity:
    path = directory / MEMBERSHIP
    try:
        told = _membership(_read(path))
    except msgspec.DecodeError as problem:
        raise _damaged(path, str(problem)) from problem
    path = directory / NODE
    first, _, rest = _read(path).decode(errors="replace").partition("\n")
    start = rest.find(_BEGIN)
    try:
        certificate = Certificate(rest[start:], float(first.removeprefix("until ")))
        der_of(certificate.pem)
    except (ValueError, UsageError):
        raise _damaged(path, "it is not a key with its certificate") from None
    fields = {name: getattr(told, name) for name in ClusterMembership.__struct_fields__}
    return Identity(**fields, directory=directory, certificate=certificate)


def _read(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            data = file.read(FILE_BYTES + 1)
    except OSError as problem:
        raise _damaged(path, problem.strerror or str(problem)) from problem
    if len(data) > FILE_BYTES:
        raise _damaged(path, "it is too large")
    return data


def _damaged(path: Path, how: str) -> HostError:
    return HostError(
        f"{path} cannot be used ({how}). Restore it from a copy; or, to make this machine alone "
        f"again, move {path.parent} away"
    )


@contextlib.contextmanager
def _writing(where: Path) -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        raise HostError(
            f"cannot write this machine's place in a cluster in {where}: "
            f"{problem.strerror or problem}; nothing was changed"
        ) from problem
