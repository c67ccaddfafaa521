"""A private Slurm cluster on this machine: one controller, a few nodes, loopback only.

Covers: starting and stopping munge, slurmctld and several slurmd for the demo and the
tests. Everything lives in one folder and on free ports; nothing of an installed Slurm
is read or changed.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "scontrol", "sinfo", "sbatch", "squeue")
SBIN = "/usr/sbin:/usr/local/sbin:/sbin"
# Before a command: it ends with the process that started it, even one that was killed.
ENDS_WITH_US = ("setpriv", "--pdeathsig", "KILL") if shutil.which("setpriv") else ()

CONF = """
ClusterName=pronto
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={controller}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CryptoType=crypto/munge
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerParameters=sched_interval=5,bf_interval=5,batch_sched_delay=1
SchedulerType=sched/backfill
ReturnToService=2
MpiDefault=none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmdTimeout=60
KillWait=2
MinJobAge=600
JobCompType=jobcomp/none
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
{extra}
NodeName=n[1-{nodes}] NodeHostname=localhost NodeAddr=127.0.0.1 Port=[{ports}] CPUs={cpus} RealMemory=500 \
Features=pronto_admit State=UNKNOWN
PartitionName=all Nodes=n[1-{nodes}] Default=YES MaxTime=5 LLN=YES State=UP
"""


class SlurmCluster:
    """A running cluster; `env` is what its commands need."""

    def __init__(self, folder: Path, *, nodes: int = 4, cpus: int = 2, extra: str = "") -> None:
        self.folder = folder
        self.nodes = [f"n{i + 1}" for i in range(nodes)]
        self.conf = folder / "slurm.conf"
        self.env = {**os.environ, "SLURM_CONF": str(self.conf), "PATH": f"{os.environ['PATH']}:{SBIN}"}
        self._cpus = cpus
        self._extra = extra
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self, *, timeout: float = 60.0) -> None:
        for name in ("munge", "state"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        self._write_conf()
        self._start_munge()
        self._run("slurmctld", "-D", "-c")
        for node in self.nodes:
            (self.folder / f"spool-{node}").mkdir(exist_ok=True)
            self._run("slurmd", "-D", "-N", node)
        wait_for(lambda: self._idle() == len(self.nodes), timeout, "all nodes idle", self.logs)

    def stop(self) -> None:
        """End every process that was started here, newest first, by its own handle."""
        for process in reversed(self._running):
            process.terminate()
        for process in reversed(self._running):
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._running.clear()

    def call(self, *command: str, check: bool = True) -> str:
        done = subprocess.run(
            command,
            env=self.env,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=30,
            check=False,
        )
        if check and done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def field(self, node: str, name: str) -> str:
        """Return one field of `scontrol show node`, such as State or Reason."""
        for line in self.call("scontrol", "show", "node", node).splitlines():
            for start in (f"{name}=", f" {name}="):
                if line.strip().startswith(start.strip()) or start in line:
                    rest = line.split(f"{name}=", 1)[1]
                    return rest if name == "Reason" else rest.split()[0] if rest.split() else ""
        return ""

    def state(self, node: str) -> str:
        return self.field(node, "State")

    def submit(self, command: str, *options: str) -> str:
        """Submit one job and return its number."""
        out = self.folder / "jobs"
        out.mkdir(exist_ok=True)
        line = ["sbatch", "--parsable", f"--output={out}/%j", "--mem=10", *options, f"--wrap={command}"]
        return self.call(*line).strip().split(";")[0]

    def jobs(self) -> dict[str, dict[str, str]]:
        """Return every job the controller still knows, by number."""
        text = self.call("squeue", "-h", "--states=all", "-o", "%i|%T|%N|%V|%S", check=False)
        found = {}
        for line in text.splitlines():
            number, state, node, submitted, started = line.split("|")
            found[number] = {"state": state, "node": node, "submitted": submitted, "started": started}
        return found

    def logs(self) -> str:
        texts = [path.read_text(errors="replace")[-1500:] for path in sorted(self.folder.glob("*.log"))]
        return "\n".join(texts)

    def _idle(self) -> int:
        return self.call("sinfo", "-h", "-N", "-o", "%N %t", check=False).count("idle\n")

    def _write_conf(self) -> None:
        ports = [free_port() for _ in range(len(self.nodes) + 1)]
        text = CONF.format(
            folder=self.folder,
            controller=ports[0],
            ports=",".join(map(str, ports[1:])),
            nodes=len(self.nodes),
            cpus=self._cpus,
            user=_user(),
            extra=self._extra,
        )
        self.conf.write_text(text)

    def _start_munge(self) -> None:
        folder = self.folder / "munge"
        folder.chmod(0o711)
        key = folder / "key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        names = {"--key-file": "key", "--socket": "socket", "--pid-file": "pid", "--log-file": "log"}
        options = [f"{option}={folder / name}" for option, name in names.items()]
        self._run("munged", "--foreground", "--force", *options, f"--seed-file={folder / 'seed'}")
        wait_for((folder / "socket").exists, 30, "munge's socket", self.logs)

    def _run(self, program: str, *arguments: str) -> None:
        path = shutil.which(program, path=self.env["PATH"])
        if path is None:
            raise RuntimeError(f"{program} is not installed: apt-get install slurm-wlm munge")
        with (self.folder / f"{program}.out").open("ab") as out:
            process = subprocess.Popen(
                [*ENDS_WITH_US, path, *arguments],
                env=self.env,
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
            )
        self._running.append(process)


@contextmanager
def running_cluster(folder: Path, **options: object) -> Iterator[SlurmCluster]:
    """Start a cluster in `folder` and stop it again, whatever happens."""
    cluster = SlurmCluster(folder, **options)  # type: ignore[arg-type]
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def missing_programs() -> list[str]:
    """Return what has to be installed before a cluster can start."""
    path = f"{os.environ['PATH']}:{SBIN}"
    return [program for program in PROGRAMS if shutil.which(program, path=path) is None]


def wait_for(condition, timeout: float, what: str, explain=lambda: "") -> float:
    """Wait until `condition` holds, and return how long that took."""
    start = time.monotonic()
    while not condition():
        if time.monotonic() - start > timeout:
            raise TimeoutError(f"waited {timeout:g} s for {what}\n{explain()}")
        time.sleep(0.05)
    return time.monotonic() - start


_given: set[int] = set()


def free_port() -> int:
    """Return a port of the loopback that nothing listens on, another one at each call.

    It lies below those that Linux gives to outgoing connections, so that it is still free when
    someone comes to listen there.
    """
    while True:
        port = 10_000 + secrets.randbelow(20_000)
        if port in _given:
            continue
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        _given.add(port)
        return port


def _user() -> str:
    import pwd

    return pwd.getpwuid(os.geteuid()).pw_name
