"""What an address means to the NATS client: servers, credentials, TLS."""

from __future__ import annotations

import importlib.util
import ssl
from pathlib import Path
from typing import Any

from prontosched.errors import FederationError
from prontosched.extras import missing_extra
from prontosched.federation.address import Address


def client_options(address: Address) -> dict[str, Any]:
    """Return what the client library is told, with TLS where the address asks for it."""
    options: dict[str, Any] = {"servers": list(address.servers)}
    if address.credentials is not None:
        if not Path(address.credentials).is_file():
            raise FederationError(
                f"creds must name a credentials file, got {address.credentials!r}: check the path"
            )
        if importlib.util.find_spec("nkeys") is None:
            raise FederationError(missing_extra("a credentials file", "agent"))
        options["user_credentials"] = address.credentials
    if address.user is not None:
        options |= {"user": address.user, "password": address.password or ""}
    secure = any(server.startswith(("tls", "wss")) for server in address.servers)
    if not (secure or address.authority or address.certificate):
        return options
    try:
        context = ssl.create_default_context(cafile=address.authority)
        if address.certificate:
            context.load_cert_chain(address.certificate, address.key)
    except OSError as error:
        raise FederationError(
            f"ca, cert and key must be readable PEM files, got {error} for "
            f"{', '.join(filter(None, (address.authority, address.certificate, address.key)))}: check them"
        ) from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return {**options, "tls": context}
