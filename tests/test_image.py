"""The image of deploy/Containerfile is built here, and what runs in it sees the host through its mounts."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.requirements import require_program, require_root

SCRIPT = Path(__file__).parent / "engines" / "image.sh"
BUILDAH = ("buildah", "--storage-driver=vfs")
HOST = ("--volume", "/proc:/host/proc:ro", "--volume", "/sys:/host/sys:ro")


def said(*command: str, timeout: int = 120) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module", params=["bookworm", "trixie"])
def container(request: pytest.FixtureRequest) -> Iterator[str]:
    require_root()
    for program in ("buildah", "mmdebstrap"):
        require_program(program)
    image = said("sh", str(SCRIPT), request.param, timeout=900)
    made = said(*BUILDAH, "from", "--pull-never", image)
    yield made
    said(*BUILDAH, "rm", made)


def run(container: str, *command: str) -> str:
    return said(*BUILDAH, "run", "--isolation=chroot", *HOST, container, "--", *command)


@pytest.mark.soak
def test_check_in_the_image_sees_the_host_and_has_no_rights(container: str) -> None:
    configured = json.loads(said(*BUILDAH, "inspect", container))["OCIv1"]["config"]
    assert configured["User"] == "65532:65532"
    assert configured["Entrypoint"] == ["pronto"]
    assert run(container, "id", "-u") == "65532"

    found = run(container, "pronto", "check", "--root", "/host")
    assert "metrics from /host" in found
    assert "CPU Ready, thread by thread" in found


@pytest.mark.soak
def test_agent_in_the_image_decides_on_the_hosts_telemetry(container: str) -> None:
    command = (
        "pronto",
        "agent",
        "--root",
        "/host",
        "--no-keep",
        "--listen",
        "127.0.0.1:0",
        "--for",
        "5s",
        "--json",
    )
    summary = json.loads(run(container, *command).splitlines()[-1])

    assert summary["loop"]["ticks"] >= 3
    assert summary["features"] > 50
