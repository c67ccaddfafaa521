"""The manual page and shell completion come from the commands as they are."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from prontosched.cli import COMMANDS
from tests.requirements import require_program
from tools.manpage import manual


def test_every_command_has_its_section_and_its_options():
    page = manual()

    assert all(rf".SS pronto {name.replace('-', chr(92) + '-')}" in page for name in COMMANDS)
    assert r".B \-\-since TIME" in page
    assert r"pronto gate release" in page


def test_groff_finds_nothing_wrong():
    ran = subprocess.run(
        [require_program("groff"), "-man", "-Tutf8", "-ww", "-z"],
        input=manual(),
        capture_output=True,
        text=True,
    )

    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.parametrize(("words", "found"), [("pronto rep", "report"), ("pronto report --si", "--since")])
def test_the_shell_completes_commands_and_options(words, found):
    env = {**os.environ, "_PRONTO_COMPLETE": "bash_complete", "COMP_WORDS": words,
           "COMP_CWORD": str(len(words.split()) - 1)}  # fmt: skip
    ran = subprocess.run(
        [sys.executable, "-c", "from prontosched.cli import main; main()"],
        env={**env, "_PRONTO_COMPLETE": "bash_complete"},
        capture_output=True,
        text=True,
    )

    assert f"plain,{found}" in ran.stdout
