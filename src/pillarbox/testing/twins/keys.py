"""Signing keys of the twins: throw-away, made once per process."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from functools import cache

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.x509.oid import NameOID


class EcdsaKey:
    """P-256, as SendGrid signs its events."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        der = self._key.public_key().public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        self.public = base64.b64encode(der).decode()  # as SendGrid shows it

    def sign(self, data: bytes) -> str:
        return base64.b64encode(self._key.sign(data, ec.ECDSA(hashes.SHA256()))).decode()


class RsaKey:
    """RSA with a certificate of its own, as SNS signs its messages."""

    def __init__(self, name: str = "sns.amazonaws.com") -> None:
        self._key = rsa.generate_private_key(65537, 2048)
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        now = datetime.now(UTC)
        builder = x509.CertificateBuilder(
            subject_name=subject, issuer_name=subject, public_key=self._key.public_key()
        )
        builder = builder.serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(now - timedelta(days=1)).not_valid_after(
            now + timedelta(days=30)
        )
        certificate = builder.sign(self._key, hashes.SHA256())
        self.certificate = certificate.public_bytes(serialization.Encoding.PEM)
        self.fingerprint = certificate.fingerprint(
            hashes.MD5()
        ).hex()  # only names the certificate's file

    def sign(self, data: bytes, version: str) -> str:
        digest = hashes.SHA1() if version == "1" else hashes.SHA256()
        return base64.b64encode(self._key.sign(data, padding.PKCS1v15(), digest)).decode()


@cache
def ecdsa_key(name: str) -> EcdsaKey:
    """The key of that name; `forger` is nobody's."""
    return EcdsaKey()


@cache
def rsa_key(name: str) -> RsaKey:
    return RsaKey()
