"""Two network namespaces joined by a wire that can be cut."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.requirements import require_program, require_root

NEAR, FAR = "10.213.77.1", "10.213.77.2"


class Wire:
    """The pair of namespaces; commands run inside by their prefix."""

    def __init__(self) -> None:
        self.near_name, self.far_name = f"pronto-a{os.getpid()}", f"pronto-b{os.getpid()}"
        self.near = ("ip", "netns", "exec", self.near_name)
        self.far = ("ip", "netns", "exec", self.far_name)

    def build(self) -> None:
        here, there = f"pa{os.getpid()}", f"pb{os.getpid()}"
        for line in (
            f"netns add {self.near_name}",
            f"netns add {self.far_name}",
            f"link add {here} netns {self.near_name} type veth peer name {there} netns {self.far_name}",
            f"-n {self.near_name} addr add {NEAR}/30 dev {here}",
            f"-n {self.far_name} addr add {FAR}/30 dev {there}",
            f"-n {self.near_name} link set lo up",
            f"-n {self.far_name} link set lo up",
            f"-n {self.near_name} link set {here} up",
            f"-n {self.far_name} link set {there} up",
        ):
            subprocess.run(["ip", *line.split()], check=True, capture_output=True)
        self.end = here

    def cut(self) -> None:
        """Take the wire away: packets vanish, and no one is told."""
        self._set("down")

    def heal(self) -> None:
        self._set("up")

    def _set(self, state: str) -> None:
        subprocess.run(
            ["ip", "-n", self.near_name, "link", "set", self.end, state], check=True, capture_output=True
        )

    def remove(self) -> None:
        for name in (self.near_name, self.far_name):
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


@contextmanager
def wire() -> Iterator[Wire]:
    """Build the namespaces, or skip where that is not permitted."""
    require_program("ip")
    pair = Wire()
    try:
        pair.build()
    except subprocess.CalledProcessError as error:
        pair.remove()
        require_root()
        pytest.skip(f"network namespaces are not permitted here: {error.stderr.decode().strip()}")
    try:
        yield pair
    finally:
        pair.remove()
