"""The server at work: real services and jobs, what fails is said, and nothing is left running."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tests.processes import wait_for
from tests.requirements import find_program, require_root, skip
from tools import services
from tools.services import Server, command

PACKAGES = "apt-get install postgresql nginx xz-utils"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    require_root()
    if not all(find_program(name) for name in ("nginx", "xz")) or not list(
        Path("/usr/lib/postgresql").glob("*/bin")
    ):
        skip("PostgreSQL, nginx and xz", PACKAGES)
    monkeypatch.setattr(services, "ROWS", 20_000)
    monkeypatch.setattr(services, "SCALE", 1)
    # A folder of the test's own would be closed to the database's user.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        yield Server(Path(folder), 1)


def commands_of(pattern: str) -> list[str]:
    """Return the command lines of living processes that hold a text."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if pattern in line:
            found.append(line)
    return found


def test_services_answer_jobs_run_and_all_of_it_ends(server: Server) -> None:
    with services.services(server):
        server.start(server.query, 60.0)
        server.start(server.visit)
        for kind in ("logs", "backup", "sort", "compress"):
            server.run(kind, server.generator(kind), regular=True)
        wait_for(lambda: (server.folder / "access").read_text().count("/page") > 3)
        server.start(server.shell, "sleep 1000")
        wait_for(lambda: commands_of("sleep 1000"))
        begin = time.monotonic()
        server.finish()

    assert time.monotonic() - begin < 30.0
    assert [job.kind for job in server.done] == ["logs", "backup", "sort", "compress"]
    assert (server.folder / "backup.xz").stat().st_size > 1000
    assert commands_of(str(server.folder)) == []


def test_a_job_that_fails_ends_everything_with_its_message(server: Server) -> None:
    server.start(server.shell, "sleep 1000")
    server.start(server.shell, "ls no-such-file")

    assert server.stop.wait(30.0)
    with pytest.raises(click.ClickException, match=r"ls no-such-file must succeed: .*No such file"):
        server.finish()


@pytest.mark.usefixtures("server")
def test_what_ran_is_written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "REGULAR", {"logs": 0.5})
    out = tmp_path / "ran.json"

    done = CliRunner().invoke(command, ["--for", "3s", "--pause", "1h", "--out", str(out)])

    assert done.exit_code == 0, done.output
    ran = json.loads(out.read_text())
    assert (ran["seed"], ran["seconds"]) == (1, 3.0)
    assert {job["kind"] for job in ran["jobs"]} == {"logs"}
