"""govmomi's vCenter simulator on loopback, where it was built by tests/engines/vcsim.sh."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.requirements import missing_reason


def find_vcsim() -> Path | None:
    path = Path(os.environ.get("PRONTO_VCSIM", Path.home() / ".cache" / "pronto" / "vcsim"))
    return path if os.access(path, os.X_OK) else None


NEEDS_VCSIM = pytest.mark.skipif(
    find_vcsim() is None, reason=missing_reason("vcsim", "sh tests/engines/vcsim.sh")
)


class VCenter:
    """A running simulator with user `tester` and password `secret`."""

    def __init__(self, program: Path, address: str = "127.0.0.1:0") -> None:
        self._process = subprocess.Popen(
            [program, address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().strip()

    def close(self) -> None:
        self._process.terminate()
        self._process.communicate()
