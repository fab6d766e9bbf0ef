"""Certificates for tests: authorities, and what they sign."""

import datetime as dt
import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

_DAY = dt.timedelta(days=1)


@dataclass(frozen=True)
class Pair:
    """PEM files of a certificate and its key."""

    cert: Path
    key: Path


class Authority:
    """A certificate that signs others; everything lies in `folder`."""

    def __init__(self, folder: Path, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self._folder = folder
        self._certificate = certificate
        self._key = key

    @property
    def cert(self) -> Path:
        return self._folder / "ca.pem"

    @classmethod
    def make(cls, folder: Path) -> Self:
        folder.mkdir()
        key = ec.generate_private_key(ec.SECP256R1())
        name = _name(f"authority {folder.name}")
        constraints = x509.BasicConstraints(ca=True, path_length=0)
        builder = _builder(name, name, key.public_key()).add_extension(constraints, critical=True)
        made = cls(folder, builder.sign(key, hashes.SHA256()), key)
        made.cert.write_bytes(made._certificate.public_bytes(serialization.Encoding.PEM))
        return made

    def issue(self, name: str, *hosts: str) -> Pair:
        """A certificate for a host with these names and addresses, or without any for a client."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_name(name), self._certificate.subject, key.public_key())
        if hosts:
            builder = builder.add_extension(x509.SubjectAlternativeName(list(map(_host, hosts))), critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        pair = Pair(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        pair.cert.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        pair.key.write_bytes(_pem(key, serialization.NoEncryption()))
        return pair

    def locked_key(self) -> Path:
        """A key with a password."""
        path = self._folder / "locked.key"
        path.write_bytes(_pem(self._key, serialization.BestAvailableEncryption(b"password")))
        return path


def _pem(key: ec.EllipticCurvePrivateKey, encryption: serialization.KeySerializationEncryption) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    builder = x509.CertificateBuilder(issuer, subject, key, x509.random_serial_number())
    return builder.not_valid_before(now - _DAY).not_valid_after(now + _DAY)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)
