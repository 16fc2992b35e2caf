# SPDX-License-Identifier: Apache-2.0
"""Signers of bitstreams."""

from __future__ import annotations

import base64
import datetime

from castellan.common.objects import x_509
from castellan.tests.unit.key_manager import mock_key_manager
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.x509.oid import NameOID
from oslo_context import context as oslo_context


class Signer:
    """A key whose certificate is in the key manager; signed by another one's, or by itself."""

    def __init__(
        self,
        keys: mock_key_manager.MockKeyManager,
        by: Signer | None = None,
        public=None,
        days: tuple[int, int] = (-1, 1),
    ) -> None:
        self.key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"signer {id(self)}")])
        issuer = by or self
        today = datetime.datetime.now(datetime.UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(self.name)
            .issuer_name(issuer.name)
            .public_key(public or self.key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(today + datetime.timedelta(days=days[0]))
            .not_valid_after(today + datetime.timedelta(days=days[1]))
            .add_extension(x509.BasicConstraints(ca=by is None, path_length=None), critical=True)
            .add_extension(
                x509.KeyUsage(
                    digital_signature=True,
                    key_cert_sign=by is None,
                    content_commitment=False,
                    key_encipherment=False,
                    data_encipherment=False,
                    key_agreement=False,
                    crl_sign=False,
                    encipher_only=False,
                    decipher_only=False,
                ),
                critical=True,
            )
            .sign(issuer.key, hashes.SHA256())
        )
        stored = x_509.X509(certificate.public_bytes(serialization.Encoding.DER))
        self.uuid = keys.store(oslo_context.RequestContext(), stored)

    def sign(self, data: bytes) -> dict[str, str]:
        """The properties of an image with that data, signed."""
        pss = padding.PSS(mgf=padding.MGF1(hashes.SHA256()), salt_length=padding.PSS.MAX_LENGTH)
        signature = self.key.sign(data, pss, hashes.SHA256())
        return {
            "img_signature": base64.b64encode(signature).decode(),
            "img_signature_certificate_uuid": self.uuid,
            "img_signature_hash_method": "SHA-256",
            "img_signature_key_type": "RSA-PSS",
        }
