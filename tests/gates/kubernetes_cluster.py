"""A real etcd, kube-apiserver and kube-scheduler on loopback, with Node objects but no kubelets.

The programs come from `tests/engines/build.sh`; everything lives in one folder and is stopped by
process id. PRONTO_TEST_KUBERNETES names one of the versions that were built; the newest is used without it.
"""

from __future__ import annotations

import http.client
import json
import os
import subprocess
from pathlib import Path
from typing import Any

from prontosched.errors import IntegrationError
from prontosched.gates.kubernetes_client import STRATEGIC, ApiError, ApiServer
from tests.gates.chart import ENGINES, only, render, require_engine
from tests.processes import free_port, wait_for
from tests.requirements import skip


def _version(folder: Path) -> list[int]:
    return [int(part) for part in folder.name.partition("-")[2].split(".")]


BUILT = sorted(ENGINES.glob(f"kubernetes-{os.environ.get('PRONTO_TEST_KUBERNETES', '*')}"), key=_version)
BINARIES = BUILT[-1] if BUILT else ENGINES / "kubernetes"


def require_kubernetes() -> None:
    """Skip where no cluster can be started."""
    require_engine("etcd")
    require_engine("helm")
    if not all(os.access(BINARIES / program, os.X_OK) for program in ("kube-apiserver", "kube-scheduler")):
        skip("Kubernetes", "sh tests/engines/build.sh kubernetes")


def _allowed(api: ApiServer) -> bool:
    try:
        return list(api.nodes()) is not None
    except ApiError as error:
        if error.status != 403:
            raise
        return False


class Cluster:
    """The control plane, and what a test does with it."""

    def __init__(self, folder: Path, *, names_only: bool = True) -> None:
        self.folder = folder
        self.names_only = names_only
        self.url = f"https://127.0.0.1:{free_port()}"
        self.extender_port = free_port()
        self.admin: ApiServer
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        (self.folder / "tokens.csv").write_text(
            'admin-token,admin,1,"system:masters"\nagent-token,agent,2\nextender-token,extender,3\n'
        )
        key = self.folder / "account.key"
        subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)
        self._start_servers(key)
        wait_for(self._certified, what="a whole certificate of the API server")
        self.admin = self.api("admin-token")
        wait_for(
            self._healthy, seconds=120, what=f"a healthy API server, see {self.folder}/kube-apiserver.log"
        )
        self._start_scheduler()

    def stop(self) -> None:
        # At once: nothing of it is kept, and a graceful end of the API server takes ten seconds.
        for process in reversed(self._processes):
            process.kill()
            process.wait()

    def api(self, token: str) -> ApiServer:
        return ApiServer(
            self.url, token=token, ca_file=self.folder / "cert" / "apiserver.crt", timeout_seconds=10
        )

    def add_node(self, name: str, **spec: Any) -> None:
        self.admin.call("POST", "/api/v1/nodes", {"metadata": {"name": name}, "spec": spec})
        sizes = {"cpu": "8", "memory": "8Gi", "pods": "100"}
        ready = {"type": "Ready", "status": "True", "reason": "Test", "message": "made by a test"}
        status = {"status": {"capacity": sizes, "allocatable": sizes, "conditions": [ready]}}
        self.admin.patch_node(name, status, kind=STRATEGIC, status=True)

    def add_pod(self, name: str, **spec: Any) -> None:
        container = {"name": "c", "image": "none", "resources": {"requests": {"cpu": "10m"}}}
        body = {"metadata": {"name": name}, "spec": {"containers": [container], **spec}}
        self.admin.call("POST", "/api/v1/namespaces/default/pods", body)

    def pod(self, name: str) -> dict[str, Any]:
        return self.admin.call("GET", f"/api/v1/namespaces/default/pods/{name}")

    def placed(self, name: str) -> str:
        """Return the node that the pod was put on, empty while it is pending."""
        return str(self.pod(name)["spec"].get("nodeName", ""))

    def unschedulable(self, name: str) -> str:
        """Return why the scheduler says that it cannot place the pod, empty while it has not."""
        for condition in self.pod(name).get("status", {}).get("conditions", []):
            if condition["type"] == "PodScheduled" and condition["status"] == "False":
                return str(condition["message"])
        return ""

    def grant(self, role: str, *, user: str) -> None:
        """Create a role of the chart and bind it to a user of the tests."""
        gate = "extender" if role == "pronto-extender" else "taint"
        body = only(render(f"gate={gate}", "mode=veto"), "ClusterRole", role)
        group = "/apis/rbac.authorization.k8s.io/v1"
        self.admin.call("POST", f"{group}/clusterroles", body)
        binding = {
            "metadata": {"name": role},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
        }
        self.admin.call("POST", f"{group}/clusterrolebindings", binding)
        wait_for(lambda: _allowed(self.api(f"{user}-token")), what=f"rights of {user}")

    def clear(self) -> None:
        for item in self.admin.call("GET", "/api/v1/namespaces/default/pods").get("items", []):
            path = f"/api/v1/namespaces/default/pods/{item['metadata']['name']}"
            self.admin.call("DELETE", path, {"gracePeriodSeconds": 0})
        for node in list(self.admin.nodes()):
            self.admin.call("DELETE", f"/api/v1/nodes/{node['metadata']['name']}")

    def _run(self, program: str, *arguments: str) -> None:
        name = Path(program).name
        with (self.folder / f"{name}.log").open("wb") as log:
            self._processes.append(subprocess.Popen([program, *arguments], stdout=log, stderr=log))

    def _start_servers(self, key: Path) -> None:
        clients, peers = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
        self._run(
            require_engine("etcd"),
            *("--data-dir", str(self.folder / "etcd"), "--listen-client-urls", clients),
            *("--advertise-client-urls", clients, "--listen-peer-urls", peers),
            *("--initial-advertise-peer-urls", peers, "--initial-cluster", f"default={peers}"),
        )
        self._run(
            str(BINARIES / "kube-apiserver"),
            *("--etcd-servers", clients, "--bind-address", "127.0.0.1"),
            *("--advertise-address", "127.0.0.1", "--secure-port", self.url.rpartition(":")[2]),
            *("--cert-dir", str(self.folder / "cert"), "--token-auth-file", str(self.folder / "tokens.csv")),
            *("--authorization-mode", "RBAC", "--service-cluster-ip-range", "10.0.0.0/24"),
            *("--service-account-issuer", "https://pronto.test", "--service-account-key-file", str(key)),
            *("--service-account-signing-key-file", str(key)),
            *("--disable-admission-plugins", "ServiceAccount,TaintNodesByCondition"),
            # From 1.37 on no Service may point at a loopback address.
            *("--endpoint-reconciler-type", "none"),
        )

    def _start_scheduler(self) -> None:
        access = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [
                {
                    "name": "test",
                    "cluster": {
                        "server": self.url,
                        "certificate-authority": str(self.folder / "cert" / "apiserver.crt"),
                    },
                }
            ],
            "users": [{"name": "test", "user": {"token": "admin-token"}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        }
        (self.folder / "kubeconfig").write_text(json.dumps(access))
        configuration = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": False},
            "clientConnection": {"kubeconfig": str(self.folder / "kubeconfig")},
            "podInitialBackoffSeconds": 1,
            "podMaxBackoffSeconds": 1,
            "extenders": [
                {
                    "urlPrefix": f"http://127.0.0.1:{self.extender_port}/",
                    "filterVerb": "filter",
                    "prioritizeVerb": "prioritize",
                    "weight": 100,
                    "nodeCacheCapable": self.names_only,
                    "ignorable": True,
                    "httpTimeout": "1s",
                }
            ],
        }
        (self.folder / "scheduler.json").write_text(json.dumps(configuration))
        self._run(
            str(BINARIES / "kube-scheduler"),
            *("--config", str(self.folder / "scheduler.json")),
            *("--bind-address", "127.0.0.1", "--secure-port", str(free_port())),
            *("--cert-dir", str(self.folder / "scheduler-cert")),
        )

    def _certified(self) -> bool:
        # The server creates the file before it writes into it.
        file = self.folder / "cert" / "apiserver.crt"
        return file.exists() and "END CERTIFICATE" in file.read_text()

    def _healthy(self) -> bool:
        try:
            self.admin.call("GET", "/api/v1/namespaces/default")
            return True
        except (IntegrationError, ApiError, http.client.HTTPException):
            return False
