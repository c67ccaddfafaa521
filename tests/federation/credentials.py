"""An operator, an account and a user of NATS, with a credentials file, made for a test."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import time
from pathlib import Path

import pytest

KINDS = {
    "operator": "PREFIX_BYTE_OPERATOR",
    "account": "PREFIX_BYTE_ACCOUNT",
    "system": "PREFIX_BYTE_ACCOUNT",
    "user": "PREFIX_BYTE_USER",
}
JETSTREAM = ("mem_storage", "disk_storage", "streams", "consumer")
UNLIMITED = {"subs": -1, "data": -1, "payload": -1}


def make_credentials(folder: Path) -> tuple[str, Path]:
    """Return the lines of a server configuration and a credentials file that fits them."""
    nkeys = pytest.importorskip("nkeys", reason="credentials files need the package nkeys")
    keys = {
        kind: nkeys.from_seed(nkeys.encode_seed(os.urandom(32), getattr(nkeys, prefix)))
        for kind, prefix in KINDS.items()
    }
    names = {kind: key.public_key.decode() for kind, key in keys.items()}
    limits = {
        **UNLIMITED, "imports": -1, "exports": -1, "wildcards": True, "conn": -1, "leaf": -1,
        "mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1,
    }  # fmt: skip
    operator = _token(
        keys["operator"], names["operator"], names["operator"], {"type": "operator", "version": 2}
    )
    account = _token(
        keys["operator"],
        names["operator"],
        names["account"],
        {"type": "account", "version": 2, "limits": limits},
    )
    plain = {name: limit for name, limit in limits.items() if name not in JETSTREAM}
    system = _token(
        keys["operator"],
        names["operator"],
        names["system"],
        {"type": "account", "version": 2, "limits": plain},
    )
    user = _token(
        keys["account"], names["account"], names["user"], {"type": "user", "version": 2, **UNLIMITED}
    )
    seed = keys["user"].seed.decode()
    creds = folder / "node.creds"
    creds.write_text(
        f"-----BEGIN NATS USER JWT-----\n{user}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    )
    accounts = f"{names['account']}: {account}, {names['system']}: {system}"
    config = (
        f"operator: {operator}\nsystem_account: {names['system']}\nresolver: MEMORY\n"
        f"resolver_preload: {{ {accounts} }}\n"
        f'jetstream {{ store_dir: "{folder}", max_file_store: 8GB, max_memory_store: 1GB }}\n'
    )
    return config, creds


def _token(signer: object, issuer: str, subject: str, claims: dict) -> str:
    body = {"iat": int(time.time()), "iss": issuer, "name": claims["type"], "sub": subject, "nats": claims}
    digest = hashlib.new("sha512_256", json.dumps(body, separators=(",", ":")).encode()).digest()
    body["jti"] = base64.b32encode(digest).decode().rstrip("=")
    signed = f"{_part({'typ': 'JWT', 'alg': 'ed25519-nkey'})}.{_part(body)}"
    return f"{signed}.{_plain(signer.sign(signed.encode()))}"


def _part(value: dict) -> str:
    return _plain(json.dumps(value, separators=(",", ":")).encode())


def _plain(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
