"""The pepper and the master key, and the envelopes that upstream secrets are sealed in (contracts section 7).

AES-256-GCM with a data key for each record, bound to the record's id; the master key only wraps data keys.
"""

from __future__ import annotations

import json
import os
import secrets
import stat
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from sbproxy.errors.keys import KeyMaterialUnusable
from sbproxy.keys.core.record import Envelope

FILE = "key-material.json"
SHORTEST = 16
"""Characters of a configured pepper or master key."""
_NONCE = 12
_LARGEST_FILE = 4096


@dataclass(frozen=True, slots=True)
class KeyMaterial:
    """32 bytes each."""

    pepper: bytes = field(repr=False)
    master_key: bytes = field(repr=False)


def key_material(pepper: str | None, master_key: str | None, folder: Path) -> KeyMaterial:
    """The configured values; what is not configured is made once and kept in ``folder``. Raises KeyMaterialUnusable."""
    for name, value in (("pepper", pepper), ("master_key", master_key)):
        if value is not None and len(value) < SHORTEST:
            where = f"proxy.key_management.crypto.{name}"
            raise KeyMaterialUnusable(where, f"it has fewer than {SHORTEST} characters")
    if pepper is not None and master_key is not None:
        return KeyMaterial(_derived(pepper, b"sbproxy pepper"), _derived(master_key, b"sbproxy master key"))
    kept = _kept(folder / FILE)
    return KeyMaterial(
        kept.pepper if pepper is None else _derived(pepper, b"sbproxy pepper"),
        kept.master_key if master_key is None else _derived(master_key, b"sbproxy master key"),
    )


def seal(secret: str, record_id: str, material: KeyMaterial) -> Envelope:
    data_key = AESGCM.generate_key(bit_length=256)
    return Envelope(
        _encrypted(material.master_key, data_key, b"wrap:" + record_id.encode()),
        _encrypted(data_key, secret.encode(), b"seal:" + record_id.encode()),
    )


def unseal(envelope: Envelope, record_id: str, material: KeyMaterial) -> str:
    """Raises KeyMaterialUnusable for another master key, another record's envelope, or a changed one."""
    try:
        data_key = _decrypted(material.master_key, envelope.wrapped_key, b"wrap:" + record_id.encode())
        return _decrypted(data_key, envelope.sealed, b"seal:" + record_id.encode()).decode()
    except (InvalidTag, ValueError):
        reason = "the master key does not open it; configure the one that it was sealed under, or set the secret again"
        raise KeyMaterialUnusable(f"credential {record_id}", reason) from None


def _encrypted(key: bytes, data: bytes, bound_to: bytes) -> str:
    nonce = secrets.token_bytes(_NONCE)
    return (nonce + AESGCM(key).encrypt(nonce, data, bound_to)).hex()


def _decrypted(key: bytes, text: str, bound_to: bytes) -> bytes:
    data = bytes.fromhex(text)
    return AESGCM(key).decrypt(data[:_NONCE], data[_NONCE:], bound_to)


def _derived(text: str, purpose: bytes) -> bytes:
    return HKDF(hashes.SHA256(), 32, None, purpose).derive(text.encode())


def _kept(path: Path) -> KeyMaterial:
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not path.exists():
            _make(path)
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            mode = os.fstat(descriptor).st_mode
            text = file.read(_LARGEST_FILE)
    except OSError as error:
        raise KeyMaterialUnusable(str(path), error.strerror or str(error)) from error
    if not stat.S_ISREG(mode) or stat.S_IMODE(mode) & 0o077:
        raise KeyMaterialUnusable(str(path), "others can read it; make it a plain file of mode 0600, then mint anew")
    try:
        said = json.loads(text)
        material = KeyMaterial(bytes.fromhex(said["pepper"]), bytes.fromhex(said["master_key"]))
    except (ValueError, TypeError, KeyError):
        raise KeyMaterialUnusable(str(path), "it is damaged; restore it from a copy") from None
    if len(material.pepper) != 32 or len(material.master_key) != 32:
        raise KeyMaterialUnusable(str(path), "it is damaged; restore it from a copy")
    return material


def _make(path: Path) -> None:
    """Whole or not at all; when two processes start at once, both read the first one's."""
    said = {"pepper": secrets.token_hex(32), "master_key": secrets.token_hex(32)}
    fresh = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            json.dump(said, file)
            file.flush()
            os.fsync(descriptor)
        try:
            os.link(fresh, path)
        except FileExistsError:
            return
        folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    finally:
        fresh.unlink()
