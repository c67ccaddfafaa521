"""A private HTCondor pool in a Debian 13 tree: one schedd, two startds, loopback only.

Covers: starting and stopping the daemons for tests. The tree is made by
`tests/engines/htcondor.sh`; everything runs in it as its user tester.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from examples.slurm_cluster import wait_for
from tests.processes import free_port

DEPLOY = Path(__file__).parents[2] / "deploy" / "htcondor"

CONF = """
CONDOR_HOST = 127.0.0.1
COLLECTOR_HOST = 127.0.0.1:{port}
NETWORK_INTERFACE = 127.0.0.1
BIND_ALL_INTERFACES = False
USE_SHARED_PORT = False
FULL_HOSTNAME = localhost
DAEMON_LIST = MASTER COLLECTOR NEGOTIATOR SCHEDD STARTD_A STARTD_B
RELEASE_DIR = /usr
LIBEXEC = /usr/libexec/condor
LOCAL_DIR = {folder}
LOG = {folder}/log
SPOOL = {folder}/spool
LOCK = {folder}/lock
EXECUTE = {folder}/execute
SEC_DEFAULT_AUTHENTICATION_METHODS = FS, CLAIMTOBE
ALLOW_READ = *
ALLOW_WRITE = *
ALLOW_DAEMON = *
ALLOW_NEGOTIATOR = *
ALLOW_ADMINISTRATOR = *
ALLOW_ADVERTISE_STARTD = *
NEGOTIATOR_INTERVAL = 1
NEGOTIATOR_MIN_INTERVAL = 1
NEGOTIATOR_CYCLE_DELAY = 1
SCHEDD_INTERVAL = 1
UPDATE_INTERVAL = 1
NUM_CPUS = 2
MEMORY = 1000
SLOT_TYPE_1_PARTITIONABLE = False
NUM_SLOTS = 2
SLOT_TYPE_1 = cpus=1
NUM_SLOTS_TYPE_1 = 2
START = True
SUSPEND = False
PREEMPT = False
KILL = False
STARTD_A = $(STARTD)
STARTD_A_ARGS = -f -local-name node_a
STARTD_B = $(STARTD)
STARTD_B_ARGS = -f -local-name node_b
NODE_A.STARTD_NAME = node_a
NODE_B.STARTD_NAME = node_b
STARTD.node_a.EXECUTE = {folder}/execute_a
STARTD.node_b.EXECUTE = {folder}/execute_b
STARTD.node_a.STARTD_LOG = {folder}/log/StartLog.a
STARTD.node_b.STARTD_LOG = {folder}/log/StartLog.b
STARTD_ADDRESS_FILE =
MASTER_UPDATE_INTERVAL = 5
"""

# The operator's own file, with this pool's paths and one argument for each startd.
CHANGES = {
    "/usr/local/libexec/pronto_startd_cron": "{folder}/pronto_startd_cron",
    "STARTD_CRON_PRONTO_ARGS = $(HOSTNAME)": (
        "NODE_A.STARTD_CRON_PRONTO_ARGS = node_a\n"
        "NODE_B.STARTD_CRON_PRONTO_ARGS = node_b\n"
        "STARTD_CRON_PRONTO_ENV = PRONTO_HTCONDOR_FOLDER={folder}/ads"
    ),
    "PERIOD = 5s": "PERIOD = 1s",
    "#CLAIM_WORKLIFE = 0": "CLAIM_WORKLIFE = 0",
}


class CondorPool:
    """A running pool; `ads` is where its cron jobs look for verdicts."""

    def __init__(self, tree: Path) -> None:
        self.tree = tree
        self.folder = Path(tempfile.mkdtemp(dir=tree / "tmp", prefix="pool-"))
        self.inside = "/" + str(self.folder.relative_to(tree))
        self.ads = self.folder / "ads"
        self._master: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        for name in ("log", "spool", "lock", "execute", "execute_a", "execute_b", "ads", "jobs"):
            (self.folder / name).mkdir()
        text = CONF.format(folder=self.inside, port=free_port())
        part = (DEPLOY / "pronto.config").read_text()
        for old, new in CHANGES.items():
            assert old in part, f"{old!r} must be in pronto.config"
            part = part.replace(old, new.format(folder=self.inside))
        negotiator = (DEPLOY / "pronto-negotiator.config").read_text()
        (self.folder / "condor_config").write_text(text + part + negotiator)
        shutil.copy(DEPLOY / "pronto_startd_cron", self.folder / "pronto_startd_cron")
        self.folder.chmod(0o777)
        owner = self._owner()
        for path in (self.folder, *self.folder.rglob("*")):
            os.chown(path, *owner)
        out = (self.folder / "master.out").open("wb")
        with out:
            self._master = subprocess.Popen(self._command("condor_master", "-f"), stdout=out, stderr=out)
        wait_for(lambda: len(self.status()) == 4, 60, "four slots", self.logs)

    def stop(self) -> None:
        if self._master is not None:
            self._master.terminate()
            try:
                self._master.wait(20)
            except subprocess.TimeoutExpired:
                self._master.kill()
                self._master.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def call(self, *command: str) -> str:
        done = subprocess.run(
            self._command(*command), capture_output=True, text=True, timeout=30, check=False
        )
        return done.stdout

    def status(self) -> dict[str, tuple[str, str]]:
        """Return ProntoReject and ProntoReason of every slot, by its name."""
        text = self.call("condor_status", "-af:,", "Name", "ProntoReject", "ProntoReason")
        rows = [line.split(", ", 2) for line in text.splitlines()]
        return {row[0]: (row[1], row[2]) for row in rows if len(row) == 3}

    def contention(self) -> dict[str, str]:
        """Return ProntoContention of every slot, by its name."""
        text = self.call("condor_status", "-af:,", "Name", "ProntoContention")
        return dict(line.split(", ", 1) for line in text.splitlines())

    def unclaimed(self) -> bool:
        """Tell whether all four slots are free."""
        return self.call("condor_status", "-af", "State").split() == ["Unclaimed"] * 4

    def submit(self, count: int, *lines: str) -> str:
        """Submit `count` short jobs and return their cluster number."""
        file = self.folder / "jobs" / "job.sub"
        log = f"{self.inside}/jobs/log.$(Cluster)"
        text = ["executable = /bin/sleep", "arguments = 1", f"log = {log}", "transfer_executable = False"]
        file.write_text("\n".join([*text, "request_memory = 10", *lines, f"queue {count}", ""]))
        out = self.call("condor_submit", "-terse", f"{self.inside}/jobs/job.sub")
        return out.split(".")[0]

    def hosts(self, cluster: str) -> list[str]:
        """Return where the finished jobs of `cluster` ran: node_a or node_b."""
        text = self.call("condor_history", cluster, "-af", "LastRemoteHost")
        return [line.split("@")[1] for line in text.split() if "@" in line]

    def logs(self) -> str:
        return "\n".join(
            f"{path.name}\n{path.read_text(errors='replace')[-1500:]}"
            for path in [*sorted((self.folder / "log").glob("*Log*")), self.folder / "master.out"]
            if path.is_file()
        )

    def _command(self, *command: str) -> list[str]:
        # In a mount namespace of its own: what is mounted there goes away with the process.
        enter = (
            'mount --bind /proc "$1/proc" && mount --bind /dev "$1/dev" && '
            'exec chroot --userspec=tester:tester "$@"'
        )
        settings = [
            "/usr/bin/env",
            f"CONDOR_CONFIG={self.inside}/condor_config",
            "PATH=/usr/sbin:/usr/bin:/bin",
        ]
        return ["unshare", "--mount", "sh", "-c", enter, "sh", str(self.tree), *settings, *command]

    def _owner(self) -> tuple[int, int]:
        for line in (self.tree / "etc" / "passwd").read_text().splitlines():
            if line.startswith("tester:"):
                fields = line.split(":")
                return int(fields[2]), int(fields[3])
        raise RuntimeError(f"{self.tree} has no user tester: make it with tests/engines/htcondor.sh")


@contextmanager
def running_pool(tree: Path) -> Iterator[CondorPool]:
    """Start a pool and stop it again, whatever happens."""
    pool = CondorPool(tree)
    try:
        pool.start()
        yield pool
    finally:
        pool.stop()
