"""A Kubernetes API server over plain HTTP: read one node, list objects page by page, patch a node.

It is found from `PRONTO_KUBERNETES_*` in the environment, or from a pod's service account.
There is no watching, and no kubeconfig file is read.
"""

from __future__ import annotations

import http.client
import ipaddress
import json
import os
import re
import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from prontosched.errors import IntegrationError, SettingsError

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
ANSWER_LIMIT = 64 * 1024 * 1024
PAGE = 250
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"

# What Kubernetes calls a DNS-1123 subdomain: nothing else can be the name of a node.
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


class ApiError(IntegrationError):
    """The API server refused a call; `status` 403 is missing rights, 404 an unknown node, 409 a lost race."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class ApiServer:
    """A Kubernetes API server, as far as nodes go; plain `http` only on this machine.

    `token_file` is read before every call, because a pod's token changes while it runs.
    `timeout_seconds` is the longest wait for the server at any one point of a call.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str = "",
        token_file: Path | None = None,
        ca_file: Path | None = None,
        timeout_seconds: float = 5.0,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise SettingsError(f"url of the API server must begin with https:// or http://, got {url!r}")
        if parts.scheme == "http" and not is_loopback(parts.hostname):
            raise SettingsError(
                f"url of the API server must be https beyond this machine, got {url!r}: "
                "a token sent in the clear is everyone's"
            )
        self.url = url.rstrip("/")
        self.timeout_seconds = timeout_seconds
        self._address = (parts.hostname, parts.port)
        self._token = token
        self._token_file = token_file
        self._context = _trust(ca_file) if parts.scheme == "https" else None

    @classmethod
    def find(cls, environment: Mapping[str, str] = os.environ, *, account: Path = ACCOUNT) -> ApiServer:
        """Find the API server from the environment, else from the pod that this runs in.

        Reads `PRONTO_KUBERNETES_URL`, `_TOKEN`, `_TOKEN_FILE` and `_CA`; inside a pod
        Kubernetes provides all of it by itself.
        """
        if url := environment.get("PRONTO_KUBERNETES_URL", ""):
            token_file, ca_file = (
                environment.get(f"PRONTO_KUBERNETES_{key}", "") for key in ("TOKEN_FILE", "CA")
            )
            return cls(
                url,
                token=environment.get("PRONTO_KUBERNETES_TOKEN", ""),
                token_file=Path(token_file) if token_file else None,
                ca_file=Path(ca_file) if ca_file else None,
            )
        host = environment.get("KUBERNETES_SERVICE_HOST", "")
        if not host:
            raise IntegrationError(
                "no Kubernetes API server found: run in a pod with a service account, "
                "or set PRONTO_KUBERNETES_URL, PRONTO_KUBERNETES_TOKEN_FILE and PRONTO_KUBERNETES_CA"
            )
        port = environment.get("KUBERNETES_SERVICE_PORT", "443")
        address = f"[{host}]" if ":" in host else host
        return cls(f"https://{address}:{port}", token_file=account / "token", ca_file=account / "ca.crt")

    @staticmethod
    def named(environment: Mapping[str, str] = os.environ, *, account: Path = ACCOUNT) -> bool:
        """Tell whether `find` has something to go by."""
        in_pod = "KUBERNETES_SERVICE_HOST" in environment and (account / "token").exists()
        return in_pod or bool(environment.get("PRONTO_KUBERNETES_URL"))

    def node(self, name: str) -> dict[str, Any]:
        """Return one Node object."""
        return self.call("GET", _path(name))

    def nodes(self, *, page: int = PAGE) -> Iterator[dict[str, Any]]:
        """Yield every Node object."""
        return self.items(f"/api/v1/nodes?limit={page}")

    def items(self, path: str) -> Iterator[dict[str, Any]]:
        """Yield every object of a list, fetched page by page; `path` has a query."""
        after = ""
        while True:
            page = self.call("GET", f"{path}&continue={quote(after)}")
            yield from page.get("items") or []
            after = (page.get("metadata") or {}).get("continue") or ""
            if not after:
                return

    def patch_node(
        self, name: str, change: Mapping[str, Any], *, kind: str = MERGE, status: bool = False
    ) -> dict[str, Any]:
        """Change one Node, or its status; with a `resourceVersion` in `change` only if nobody else has."""
        return self.call("PATCH", _path(name) + ("/status" if status else ""), change, kind=kind)

    def call(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, kind: str = "application/json"
    ) -> dict[str, Any]:
        """Make one call and return the object that comes back; anything but success is an `ApiError`."""
        headers, what = self.headers(), f"{method} {path.partition('?')[0]}"
        if body is not None:
            headers["Content-Type"] = kind
        connection = self._connect()
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            data = answer.read(ANSWER_LIMIT + 1)
        except (OSError, http.client.HTTPException) as error:
            raise IntegrationError(
                f"Kubernetes API server {self.url} did not answer {what}: {error}"
            ) from error
        finally:
            connection.close()
        if len(data) > ANSWER_LIMIT:
            raise IntegrationError(f"{self.url}{path} must answer at most {ANSWER_LIMIT} bytes, got more")
        try:
            found = json.loads(data) if data else {}
        except ValueError:
            found = data[:200].decode("utf-8", "replace")
        if not 200 <= answer.status < 300:
            message = found.get("message", "") if isinstance(found, dict) else found
            words = f"Kubernetes API server refused {what}: {answer.status} {message}"
            raise ApiError(answer.status, words.rstrip())
        if not isinstance(found, dict):
            raise IntegrationError(
                f"{self.url} must answer {what} with a JSON object, got {str(found)[:80]!r}"
            )
        return found

    def headers(self) -> dict[str, str]:
        """Return what every request carries: who we are."""
        headers, token = {"Accept": "application/json", "User-Agent": "pronto"}, self._token
        if self._token_file is not None:
            try:
                token = self._token_file.read_text(encoding="utf-8").strip()
            except OSError as error:
                raise IntegrationError(
                    f"token file {self._token_file} must be readable, got {error.strerror}: "
                    "mount the service account's token"
                ) from error
        return {**headers, "Authorization": f"Bearer {token}"} if token else headers

    def _connect(self) -> http.client.HTTPConnection:
        host, port = self._address
        if self._context is None:
            return http.client.HTTPConnection(host, port, timeout=self.timeout_seconds)
        return http.client.HTTPSConnection(host, port, timeout=self.timeout_seconds, context=self._context)


def node_name(name: str) -> str:
    """Return `name` if a node can be called so: it goes into paths and addresses."""
    if not _NAME.fullmatch(name):
        raise IntegrationError(
            f"node name must be lower-case letters, digits, '-' and '.', at most 253 of them, got {name[:80]!r}"
        )
    return name


def is_loopback(host: str | None) -> bool:
    """Tell whether `host` is this machine."""
    try:
        return host == "localhost" or ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return False


def _path(name: str) -> str:
    return f"/api/v1/nodes/{node_name(name)}"


def _trust(ca_file: Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=str(ca_file) if ca_file else None)
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(
            f"certificate authority {ca_file} must be a readable PEM file, got {error}"
        ) from error
