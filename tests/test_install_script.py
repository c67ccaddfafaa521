"""What `make run` and `make install` say where they cannot install; `test_installation.py` has the whole."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PYTHON = os.path.realpath(sys.executable)


def install(action: str, **settings: str) -> tuple[int, str]:
    done = subprocess.run(
        ["sh", "deploy/install.sh", action],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], **settings},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    return done.returncode, done.stdout + done.stderr


def test_a_folder_that_holds_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "opt" / "pronto").mkdir(parents=True)
    (tmp_path / "opt" / "pronto" / "mine").touch()

    for action in ("install", "uninstall"):
        code, said = install(action, DESTDIR=str(tmp_path))
        assert code == 1
        assert "holds something else: name another" in said
    assert (tmp_path / "opt" / "pronto" / "mine").exists()


def test_a_prefix_that_is_no_absolute_path_is_refused(tmp_path: Path) -> None:
    assert install("install", PREFIX="pronto", DESTDIR=str(tmp_path)) == (
        1,
        "PREFIX must be an absolute path, got pronto\n",
    )


@pytest.mark.skipif(
    not PYTHON.startswith(("/root/", "/home/")), reason="this Python is outside of home folders"
)
def test_a_python_that_the_service_cannot_see_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    code, said = install("install", PYTHON=PYTHON, DESTDIR=str(tmp_path))

    assert code == 1
    assert PYTHON in said
    assert "set PYTHON to another" in said
    assert not (tmp_path / "opt" / "pronto").exists()


def test_removing_what_is_not_there_claims_nothing(tmp_path: Path) -> None:
    code, said = install("uninstall", DESTDIR=str(tmp_path))

    assert code == 0
    assert "removed" not in said


def test_packages_that_cannot_be_installed_are_told_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    broken = tmp_path / "bin" / "python"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    (tmp_path / ".python").touch()
    command = ["make", f"VENV={tmp_path}", "run"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)

    assert done.returncode == 2
    assert "it needs a network, or a folder of wheels" in done.stderr
    assert not (tmp_path / ".run").exists()
