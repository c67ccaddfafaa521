"""Every documented way to install, tried in clean trees of Debian: `make soak ARGS=tests/test_installation.py`.

Needs root, debootstrap and a mirror. A tree takes about two minutes and 900 MB; PRONTO_TEST_TREES names a folder that
keeps trees for the next run.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from tests.requirements import require_program, require_root

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]
ROOT = Path(__file__).parent.parent
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
# What is mounted goes away with the process. The tree itself is, since scripts of an RPM ask that of their root.
ENTER = (
    'mount --bind "$0" "$0" && mount -t proc proc "$0/proc" && '
    'mount --rbind /sys "$0/sys" && mount --bind /dev "$0/dev" && '
    'exec chroot --userspec="$1:" "$0" env -i HOME="$2" PATH="$3" SSL_CERT_FILE="$4" PIP_CERT="$4" '
    'sh -c "cd /source && $5"'
)


class Tree:
    """A small Debian with Python and make, and a copy of this checkout in /source that `tester` owns."""

    def __init__(self, folder: Path, suite: str) -> None:
        self.folder = folder
        if not (folder / "etc/debian_version").exists():
            bootstrap = [
                require_program("debootstrap"),
                "--variant=minbase",
                "--include=ca-certificates,make,python3",
            ]
            subprocess.run([*bootstrap, suite, str(folder)], check=True, stdout=subprocess.DEVNULL)
        shutil.copy("/etc/resolv.conf", folder / "etc/resolv.conf")
        # Slurm asks for the machine by its name.
        (folder / "etc/hosts").write_text(f"127.0.0.1 localhost {socket.gethostname()}\n")
        shutil.copy(CERTIFICATES, folder / CERTIFICATES[1:])
        shutil.rmtree(folder / "source", ignore_errors=True)
        (folder / "source").mkdir()
        files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout
        pack = ["tar", "--create", "--null", "--files-from=-"]
        packed = subprocess.run(pack, cwd=ROOT, input=files, check=True, capture_output=True).stdout
        subprocess.run(["tar", "--extract"], cwd=folder / "source", input=packed, check=True)
        self.run("id tester >/dev/null 2>&1 || useradd --create-home tester; chown -R tester: /source")

    def run(self, script: str, *, user: str = "root", fails: bool = False) -> str:
        """Run a shell script in /source and return all it said."""
        home = "/root" if user == "root" else f"/home/{user}"
        path = f"{home}/.local/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        done = subprocess.run(
            [
                "unshare",
                "--mount",
                "sh",
                "-c",
                ENTER,
                str(self.folder),
                user,
                home,
                path,
                CERTIFICATES,
                script,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            check=False,
        )
        assert (done.returncode != 0) == fails, done.stdout[-3000:]
        return done.stdout

    def install(self, *packages: str) -> None:
        """Install Debian packages, without what they recommend."""
        self.run(
            "apt-get update -qq && DEBIAN_FRONTEND=noninteractive "
            f"apt-get install -y -qq --no-install-recommends {' '.join(packages)} >/dev/null 2>&1"
        )


@pytest.fixture(scope="module", params=["bookworm", "trixie"])
def tree(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tree:
    require_root()
    kept = os.environ.get("PRONTO_TEST_TREES", "")
    folder = Path(kept) if kept else tmp_path_factory.mktemp("trees")
    return Tree(folder / request.param, request.param)


@pytest.fixture(scope="module")
def complete(tree: Tree) -> Tree:
    tree.install("python3-venv", "pipx", "systemd")
    return tree


@pytest.fixture
def ready(complete: Tree) -> Tree:
    """The tree with what the README asks for, and systemd to judge the unit; nothing of Pronto is there."""
    complete.run("uv tool uninstall prontosched; pipx uninstall-all; rm -rf .venv; true", user="tester")
    complete.run("make uninstall && rm -rf /etc/pronto")
    return complete


def works(tree: Tree, command: str = "pronto", *, user: str) -> None:
    """Try what a user tries first: nothing fails and nothing is missing."""
    assert re.fullmatch(
        r"pronto, version \d+\.\d+\.\d+\n", tree.run(f"cd / && {command} --version", user=user)
    )
    said = tree.run(f"cd / && {command} up --for 3s --listen 127.0.0.1:0", user=user)
    assert re.search(r"\d+ decisions", said)
    assert "Traceback" not in said


def test_without_the_venv_module_the_package_to_install_is_named(tree: Tree) -> None:
    if "venv" in tree.run("dpkg-query -W -f '${Package}\\n'"):
        pytest.skip("this kept tree has it already")
    said = tree.run("make run", user="tester", fails=True)

    assert re.search(
        r"needs the venv module of Python 3\.\d+: install it \(Debian: apt-get install python3\.\d+-venv\)",
        said,
    )


def test_make_run_sets_itself_up(ready: Tree) -> None:
    said = ready.run('make run ARGS="--for 3s --listen 127.0.0.1:0"', user="tester")

    assert re.search(r"\d+ decisions", said)


def test_pipx_installs_the_checkout(ready: Tree) -> None:
    ready.run("pipx install '.[agent]'", user="tester")
    works(ready, user="tester")


def test_pipx_installs_the_wheel(ready: Tree) -> None:
    ready.run(
        "python3 -m venv /tmp/build && /tmp/build/bin/pip -q wheel --no-deps -w /tmp/wheel .", user="tester"
    )
    ready.run('pipx install "$(ls /tmp/wheel/*.whl)[agent]"', user="tester")
    works(ready, user="tester")
    ready.run("rm -rf /tmp/build /tmp/wheel", user="tester")


def test_uv_installs_the_checkout(ready: Tree) -> None:
    ready.run("pipx install uv && uv tool install '.[agent]'", user="tester")
    works(ready, user="tester")
    said = ready.run("cd /tmp && pronto record x.parquet", user="tester", fails=True)
    assert said.splitlines()[-1].endswith("'pyarrow>=15'")
    ready.run(said.splitlines()[-1].rpartition(": ")[2], user="tester")
    ready.run("cd /tmp && pronto record x.parquet --for 2s && rm x.parquet", user="tester")


def test_make_install_makes_a_service_and_a_command_and_uninstall_removes_them(ready: Tree) -> None:
    before = ready.run("ls -d /opt/* /usr/local/bin/* /etc/systemd/system/* 2>/dev/null || true")
    ready.run("make install")
    again = ready.run("make install")  # as an upgrade does
    unit = (ready.folder / "etc/systemd/system/pronto-agent.service").read_text()
    (command,) = re.findall(r"(?m)^ExecStart=(.+)$", unit)

    assert "systemctl enable --now pronto-agent" in again
    works(ready, user="tester")
    shared = ("man/man1/pronto.1", "bash-completion/completions/pronto")
    assert all((ready.folder / "usr/local/share" / path).stat().st_size > 500 for path in shared)
    assert ready.run("systemd-analyze verify /etc/systemd/system/pronto-agent.service") == ""
    assert re.search(
        r"\d+ decisions", ready.run(f"{command} --for 3s --no-keep --listen 127.0.0.1:0", user="nobody")
    )
    ready.run("make uninstall")
    assert not any((ready.folder / "usr/local/share" / path).exists() for path in shared)
    assert ready.run("ls -d /opt/* /usr/local/bin/* /etc/systemd/system/* 2>/dev/null || true") == before


def test_what_is_not_ours_is_never_replaced_or_removed(ready: Tree) -> None:
    for action in ("install", "uninstall"):
        assert "PREFIX must be a folder of Pronto's own" in ready.run(
            f"make {action} PREFIX=/usr", fails=True
        )
    assert "must be writable: run as root" in ready.run("make install", user="tester", fails=True)


def test_debian_package_installs_runs_and_purges_without_a_trace(ready: Tree) -> None:
    ready.install("dpkg-dev", "make")
    places = "/opt /usr/bin /usr/lib/systemd/system /etc /var/lib"
    file = ready.run("make deb 2>/dev/null").splitlines()[-1]
    before = ready.run(f"find {places} -name '*pronto*' 2>/dev/null | sort")
    ready.run(f"apt-get install -y -qq ./{file} >/dev/null 2>&1")
    try:
        works(ready, user="tester")
        assert ready.run("systemd-analyze verify /usr/lib/systemd/system/pronto-agent.service") == ""
        assert "/etc/pronto/pronto.toml" in ready.run("dpkg-query -W -f '${Conffiles}' prontosched")
        ready.run("mkdir -p /var/lib/pronto && touch /var/lib/pronto/state")
    finally:
        ready.run("apt-get purge -y -qq prontosched >/dev/null 2>&1")
    assert ready.run(f"find {places} -name '*pronto*' 2>/dev/null | sort") == before


def test_rpm_installs_runs_and_is_erased(ready: Tree) -> None:
    """Built and installed by Debian's rpm, which knows none of the packages that it needs."""
    ready.install("rpm", "make")
    places = "/opt /usr/bin /usr/lib/systemd/system /usr/share/man /usr/share/bash-completion /etc"
    before = ready.run(f"find {places} -name '*pronto*' 2>/dev/null | sort")
    file = ready.run("make rpm 2>/dev/null").splitlines()[-1]
    # Debian 13 does not ask for it.
    forced = ready.run("rpm --help | grep -o -- --force-debian || true").strip()
    rpm = f"rpm {forced} --dbpath /tmp/rpms"
    ready.run(f"{rpm} --nodeps --install ./{file}")
    try:
        works(ready, user="tester")
        assert ready.run("systemd-analyze verify /usr/lib/systemd/system/pronto-agent.service") == ""
        assert ready.run(f"{rpm} --query --configfiles prontosched").split() == ["/etc/pronto/pronto.toml"]
        assert re.search(r"/usr/bin/python3\.\d+", ready.run(f"{rpm} --query --requires prontosched"))
    finally:
        ready.run(f"{rpm} --nodeps --erase prontosched")
    assert ready.run(f"find {places} -name '*pronto*' 2>/dev/null | sort") == before


def test_slurm_of_this_release_obeys_the_gate(ready: Tree) -> None:
    ready.install("slurmctld", "slurmd", "slurm-client", "munge", "procps")
    version = ready.run("slurmctld -V").split()[1]
    said = ready.run("make test DAEMONS=0 ARGS='tests/gates/test_slurm.py tests/gates/test_slurm_weight.py'")

    assert re.search(r"\d+ passed", said), said[-2000:]
    assert "failed" not in said
    assert " Slurm (" not in said, f"skipped for want of Slurm, though {version} is installed"
