"""Every example in the help and the README, run with what the README's line installs and nothing more."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shlex
import ssl
import subprocess
import sys
import tomllib
import venv
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import numpy as np
import pytest
from packaging.requirements import Requirement

from prontosched.cli import COMMANDS, cli
from prontosched.extras import EXTRAS, extra_of, install_command
from tests.processes import wait_for

ROOT = Path(__file__).parent.parent
# Options that make an example end soon; the last one counts. None: too long to run here, parsed only.
SHORTER: dict[str, str | None] = {
    "up": "--for 1s --listen 127.0.0.1:0 --no-keep",
    "agent": "--for 1s --listen 127.0.0.1:0 --no-keep",
    "record": "--for 1s",
    "run": None,
    "generate": "--clusters 1 --nodes 2 --length 20m",
    "extender": "--listen 127.0.0.1:0",
    "evaluate": "--methods ready,random --steps 200",
    "pronto evaluate --report report.html": "--methods ready,random host-1.csv --ready cpu_ready",
    "pronto evaluate traces/ --engine dask --scheduler tcp://10.0.0.4:8786": "--scheduler tcp://127.0.0.1:9",
    "forecast": None,
    "simulate": "--seeds 1 --nodes 4 --steps 120 --placers random --rules nothing,ready",
}
# These need a bus, another agent or a scheduler: one line that says so is right where there is none.
NEEDS_OTHERS = {"agent", "gate release", "gate status", "federation"}
# These ask the agent of this machine; the exit code of `status` is the node's state.
ASKS = {"status", "explain", "report"}
# A line as `pronto federation keys` prints it.
KEYS = (
    "node rack/n1 ed25519:p3qdI7uM/+PND31nC+m1W8kJo59Ba7gb7i9RHab3+uc= "
    "UAKHFMMJ3NJQEM3X3T7UXXR5QHHHQVWPTNEOIN4RDOA63YBPM4R3IKMF\n"
)
SERVICES = {"gate watch", "extender", "aggregate"}


def walk(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        for name, part in command.commands.items():
            yield from walk(part, f"{path} {name}")


def commands() -> dict[str, click.Command]:
    context = click.Context(cli)
    return dict(pair for name in COMMANDS for pair in walk(cli.get_command(context, name), name))  # type: ignore[arg-type]


PARTS = commands()


def part_of(line: str) -> str:
    """Return the longest name of a command that an example begins with."""
    words = shlex.split(line.partition("|")[0])[1:]
    names = [" ".join(words[:count]) for count in (2, 1)]
    return next(name for name in names if name in PARTS)


def documented() -> list[str]:
    texts = [command.help or "" for command in PARTS.values()]
    texts += re.findall(r"```\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    found = re.findall(r"(?m)^\s*(pronto [^#\n]+?)\s*(?:#.*)?$", "\n".join(texts))
    return list(dict.fromkeys(found))


def extras_of(part: str) -> tuple[str, ...]:
    """Return what the README's line installs, and what the command's help says it needs."""
    said = re.search(r"Needs the extra ([^.]+)\.", " ".join((PARTS[part].help or "").split()))
    return ("agent", *(re.findall(r"`(\w+)`", said[1]) if said else ()))


def distributions(extras: tuple[str, ...]) -> set[str]:
    """Return the installed packages that Pronto with these extras asks for, and what those ask for."""
    found: set[str] = set()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    texts = [*project["dependencies"], *(text for extra in extras for text in declared()[extra])]
    left = [("prontosched", frozenset[str](), texts)]
    while left:
        name, wanted, texts = left.pop()
        found.add(name)
        for needed in map(Requirement, texts):
            holds = needed.marker is None or any(needed.marker.evaluate({"extra": e}) for e in (*wanted, ""))
            if holds and needed.name.lower() not in found:
                texts = importlib.metadata.requires(needed.name) or []
                left.append((needed.name.lower(), frozenset(needed.extras), texts))
    return found


def environment(folder: Path, extras: tuple[str, ...]) -> Path:
    """Make an environment that has these packages and no others; return its folder of programs."""
    venv.create(folder, symlinks=True)
    (site,) = (folder / "lib").glob("python*/site-packages")
    for name in distributions(extras):
        files = importlib.metadata.distribution(name).files or []
        for top in {file.parts[0] for file in files} - {"..", "__pycache__", "/"}:
            if top.endswith(".pth"):  # an editable installation's: the source is named below
                continue
            place = Path(str(importlib.metadata.distribution(name).locate_file(top)))
            if place.exists() and not (site / top).exists():
                (site / top).symlink_to(place)
    (site / "prontosched.pth").write_text(f"{ROOT / 'src'}\n")
    program = folder / "bin" / "pronto"
    guarded = "from prontosched.__main__ import main\n\nif __name__ == '__main__':\n    main()\n"
    program.write_text(f"#!{folder}/bin/python\n{guarded}")
    program.chmod(0o755)
    return folder / "bin"


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[tuple[str, ...]], Path]:
    made: dict[tuple[str, ...], Path] = {}

    def find(extras: tuple[str, ...]) -> Path:
        if extras not in made:
            made[extras] = environment(tmp_path_factory.mktemp("environment"), extras)
        return made[extras]

    return find


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with the traces, keys and certificates that examples read."""
    folder = tmp_path
    rng = np.random.default_rng(5)
    for name in ("host.csv", "host-1.csv", "smd/one.csv", "made/one.csv", "traces/one.csv"):
        ready = {"host-1.csv": "cpu_ready", "made/one.csv": "cpu_ready_ms"}.get(name, "ready")
        rows = [f"timestamp,{ready},utilisation,cpu_a,b,c"]
        rows += [f"{t}," + ",".join(f"{v:.3f}" for v in rng.uniform(0, 50, 5)) for t in range(300)]
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("\n".join(rows) + "\n")
    (folder / "home").mkdir()
    (folder / "keys").write_text(KEYS)
    (folder / "token").write_text("0123456789abcdef" * 2)
    bundle = ssl.get_default_verify_paths().cafile
    (folder / "ca.crt").write_bytes(b"" if bundle is None else Path(bundle).read_bytes())
    return folder


@pytest.fixture(scope="module")
def state(
    programs: Callable[[tuple[str, ...]], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """The folder for state of an agent that runs, with what the README's line installs."""
    folder, pronto = tmp_path_factory.mktemp("state"), programs(("agent",)) / "pronto"
    agent = subprocess.Popen(
        [pronto, "up", "--source", "generated", "--interval", "0.05s", "--listen", "127.0.0.1:0"],
        env={"PATH": os.environ["PATH"], "HOME": str(folder), "XDG_STATE_HOME": str(folder)},
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    wait_for((folder / "pronto" / "address.json").exists, what="an agent that answers")
    yield folder
    agent.terminate()
    agent.wait(60)


def run(line: str, programs: Path, place: Path, state: Path | None = None) -> tuple[int | None, str]:
    """Run a line in a shell; a service is ended once it has said something, and has no exit code."""
    settings = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "HOME": str(place / "home"),
        "OPENBLAS_NUM_THREADS": "1",
        **({} if state is None else {"XDG_STATE_HOME": str(state)}),
    }
    process = subprocess.Popen(
        ["sh", "-c", f"exec {line}" if "|" not in line else line],
        cwd=place, env=settings, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    if part_of(line) not in SERVICES:
        out, _ = process.communicate(timeout=110)
        return process.returncode, out
    assert process.stdout is not None
    first = process.stdout.readline()
    process.terminate()
    rest, _ = process.communicate(timeout=60)
    return None, first + rest


@pytest.mark.parametrize("line", documented())
def test_documented_example_is_understood(line: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    part = part_of(line)
    words = shlex.split(re.split("[|>]", line)[0])[1 + len(part.split()) :]
    words = [
        match for word in words for match in (sorted(map(str, Path().glob(word))) if "*." in word else [word])
    ]
    command = PARTS[part]

    assert isinstance(command, click.Group) or command.make_context(part, words)


@pytest.mark.parametrize(
    "line", [line for line in documented() if SHORTER.get(part_of(line), "") is not None]
)
def test_documented_example_runs_with_what_the_readme_installs(
    line: str, programs: Callable[[tuple[str, ...]], Path], place: Path, state: Path
) -> None:
    part = part_of(line)
    if part == "record":
        (place / "host.csv").unlink()
    head, pipe, tail = line.partition("|")
    options = SHORTER.get(line, SHORTER.get(part, ""))
    shorter = f"{head} {options} {pipe} {tail}".strip()
    code, said = run(shorter, programs(extras_of(part)), place, state if part in ASKS else None)

    assert "Traceback" not in said
    assert "needs the extra" not in said
    if part in NEEDS_OTHERS or "--scheduler" in line or "http://n1" in line or "--at" in line:
        assert code is not None, said
    else:
        assert code in ((0, 1, 3) if part == "status" else (0, None)), said


@pytest.mark.parametrize(
    ("line", "extra"),
    [
        ("pronto record host.parquet --for 1s", "trace"),
        ("pronto generate vms new --format parquet", "trace"),
        ("pronto evaluate --report report.html", "evaluation"),
        ("pronto evaluate traces --engine dask", "dask"),
        ("pronto forecast", "evaluation"),
        ("pronto simulate --figure x.png", "evaluation"),
        ("pronto agent --source vsphere --target vc.example --no-keep --listen 127.0.0.1:0", "vsphere"),
    ],
)
def test_missing_extra_is_one_line_with_the_command_that_adds_it(
    line: str, extra: str, programs: Callable[[tuple[str, ...]], Path], place: Path
) -> None:
    code, said = run(line, programs(("agent",)), place)
    last = said.splitlines()[-1]

    assert code == 1
    assert "Traceback" not in said
    assert f"needs the extra '{extra}': " in last
    for needed in declared()[extra]:
        assert needed in last


@pytest.mark.parametrize(
    "line", ["pronto up", "pronto agent", "pronto status", "pronto run -- true", "pronto explain"]
)
def test_without_any_extra_the_agent_s_is_named(
    line: str, programs: Callable[[tuple[str, ...]], Path], place: Path
) -> None:
    code, said = run(line, programs(()), place)

    assert code == 1
    assert said.startswith("pronto: this needs the extra 'agent': ")
    assert len(said.splitlines()) == 1


def declared() -> dict[str, list[str]]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return {extra: list(needed) for extra, needed in project["optional-dependencies"].items()}


def test_every_extra_a_user_can_ask_for_is_known() -> None:
    assert set(EXTRAS) == set(declared()) - {"dev", "bench", "docs"}


def test_modules_belong_to_the_extra_that_brings_them() -> None:
    assert extra_of("pyarrow.parquet") == "trace"
    assert extra_of("prontosched.pipeline.node") is None
    assert install_command("trace") == f"{shlex.quote(sys.executable)} -m pip install 'pyarrow>=15'"
