"""A certificate for SMTP with STARTTLS in development: made once, kept beside the data."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from pillarbox.errors import SettingsError
from pillarbox.store.vault import write_private_file

# The longest that all TLS clients accept.
LIFETIME = timedelta(days=825)
# A pair that ends sooner is replaced at the start: a server of development seldom runs longer.
LEAST_LEFT = timedelta(days=30)
NAMES = ("localhost", "127.0.0.1", "::1")


class DevelopmentCertificate(NamedTuple):
    """Files of PEM: what the server shows, with its key; and what clients trust."""

    server: Path
    ca: Path


def paths_in(directory: Path) -> DevelopmentCertificate:
    """Where the files are kept."""
    folder = directory / "smtp-starttls"
    return DevelopmentCertificate(folder / "server.pem", folder / "ca.pem")


def load_or_create(directory: Path, host: str) -> DevelopmentCertificate:
    """The certificate of this machine, kept in `directory`; a new one if missing or expiring soon.

    The CA signs this one certificate, and its key is thrown away: trusting it lets nobody else in.
    """
    paths = paths_in(directory)
    names = tuple(dict.fromkeys((*NAMES, host)))
    try:
        if not _is_good(paths, names):
            paths.ca.parent.mkdir(parents=True, exist_ok=True)
            server, ca = _create(names)
            write_private_file(paths.server, server)
            paths.ca.write_text(ca, "ascii")
    except OSError as error:
        raise SettingsError(
            f"the certificate of smtp_starttls cannot be kept in {paths.ca.parent}:"
            f" {error.strerror}."
            " Choose another directory with --data DIR"
        ) from None
    return paths


def _is_good(paths: DevelopmentCertificate, names: tuple[str, ...]) -> bool:
    """Whether the files are there, fit together, name this host and last."""
    try:
        shown = x509.load_pem_x509_certificate(paths.server.read_bytes())
        ca = x509.load_pem_x509_certificate(paths.ca.read_bytes())
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(paths.server)
        shown.verify_directly_issued_by(ca)
        kept = shown.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (
        FileNotFoundError,
        ValueError,
        TypeError,
        ssl.SSLError,
        x509.ExtensionNotFound,
        InvalidSignature,
    ):
        return False
    return (
        set(_subjects(names)) <= set(kept)
        and shown.not_valid_after_utc - datetime.now(UTC) > LEAST_LEFT
    )


def _create(names: tuple[str, ...]) -> tuple[str, str]:
    """A server's certificate with its key, and the certificate of the CA that signed it, as PEM."""
    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    ca_name = _name("Pillarbox development CA")
    ca = (
        _dated(ca_name, ca_name, ca_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(
            x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), critical=False
        )
        .add_extension(_usage(key_cert_sign=True), critical=True)
        .sign(ca_key, hashes.SHA256())
    )
    certificate = (
        _dated(_name("localhost"), ca_name, key)
        .add_extension(x509.SubjectAlternativeName(_subjects(names)), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False
        )
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return _pem(certificate) + private.decode(), _pem(ca)


def _dated(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + LIFETIME)
    )


def _usage(*, key_cert_sign: bool = False, digital_signature: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature, key_cert_sign=key_cert_sign, crl_sign=key_cert_sign,
        content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _subjects(names: tuple[str, ...]) -> list[x509.GeneralName]:
    subjects: list[x509.GeneralName] = []
    for name in names:
        try:
            subjects.append(x509.IPAddress(ip_address(name)))
        except ValueError:
            subjects.append(x509.DNSName(name))
    return subjects


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()
