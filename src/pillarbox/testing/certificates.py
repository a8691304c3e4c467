"""Temporary certificates for TLS tests: a CA, valid server certificates, and invalid ones."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Certificate:
    """A server's certificate and key as PEM files."""

    certificate: Path
    key: Path

    def server_context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self.certificate, self.key)
        return context


class CertificateAuthority:
    """Signs server certificates that only clients told about it trust."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = directory / "ca.pem"  # what clients trust
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("Pillarbox throw-away CA")
        self._issued = 0
        self._certificate = self._sign_itself()
        self.path.write_bytes(_pem(self._certificate))

    def client_context(self) -> ssl.SSLContext:
        """Verifies certificates and names, and trusts this authority alone."""
        return ssl.create_default_context(cafile=str(self.path))

    def issue(self, *names: str, expired: bool = False) -> Certificate:
        """A certificate for these names and addresses; localhost and 127.0.0.1 unless told."""
        subjects = names or ("localhost", "127.0.0.1")
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._server_certificate(subjects, key.public_key(), expired)
        self._issued += 1
        stem = self.directory / f"server-{self._issued}"
        issued = Certificate(stem.with_suffix(".pem"), stem.with_suffix(".key"))
        issued.certificate.write_bytes(_pem(certificate))
        issued.key.touch(mode=0o600)
        issued.key.write_bytes(_key_pem(key))
        return issued

    def expired(self) -> Certificate:
        """The right names, a day too late."""
        return self.issue(expired=True)

    def self_signed(self) -> Certificate:
        """The right names, in date, and signed by nobody but itself."""
        other = self.directory / f"self-signed-{self._issued}"
        other.mkdir()
        return make_ca(other).as_server()

    def as_server(self) -> Certificate:
        """The authority's own certificate, for a server to show."""
        key = self.path.with_suffix(".key")
        key.touch(mode=0o600)
        key.write_bytes(_key_pem(self._key))
        return Certificate(self.path, key)

    def wrong_name(self) -> Certificate:
        """In date and trusted, but for somebody else."""
        return self.issue("elsewhere.example")

    def _sign_itself(self) -> x509.Certificate:
        usage = _usage(signs_certificates=True)
        builder = _builder(
            self._name,
            self._name,
            self._key.public_key(),
            expired=False,
        )
        builder = builder.add_extension(
            x509.BasicConstraints(ca=True, path_length=0), critical=True
        )
        return builder.add_extension(usage, critical=True).sign(self._key, hashes.SHA256())

    def _server_certificate(
        self,
        names: tuple[str, ...],
        key: ec.EllipticCurvePublicKey,
        expired: bool,
    ) -> x509.Certificate:
        builder = _builder(
            _name(names[0]),
            self._name,
            key,
            expired=expired,
        )
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        purpose = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
        builder = builder.add_extension(
            x509.SubjectAlternativeName([_subject(name) for name in names]), False
        )
        builder = builder.add_extension(
            x509.BasicConstraints(ca=False, path_length=None), critical=True
        )
        builder = builder.add_extension(_usage(signs_certificates=False), critical=True)
        return (
            builder.add_extension(issuer, False)
            .add_extension(purpose, False)
            .sign(self._key, hashes.SHA256())
        )


def make_ca(directory: Path) -> CertificateAuthority:
    """A new authority that keeps its files in a directory of the test's own (`tmp_path`)."""
    return CertificateAuthority(directory)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    *,
    expired: bool,
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(subject_name=subject, issuer_name=issuer, public_key=key)
    builder = builder.serial_number(x509.random_serial_number())
    not_after = now + 7 * _DAY
    if expired:
        not_after = now - _DAY
    builder = builder.not_valid_before(now - 2 * _DAY).not_valid_after(not_after)
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
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


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _subject(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    form, encryption = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, form, encryption)
