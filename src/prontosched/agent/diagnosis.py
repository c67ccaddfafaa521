"""What is wrong on this machine, most important first, each with the command that mends it.

Printed by `pronto check`. Nothing is changed: schedulers and the bus are only asked.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from prontosched.agent.config import check, gate_of
from prontosched.agent.http.client import Client, UntrustedError
from prontosched.agent.store import default_folder
from prontosched.errors import ProntoError
from prontosched.gates.gate import Gate
from prontosched.gates.registry import make_gate, present_gates
from prontosched.gates.sweep import marked
from prontosched.settings import AgentSettings
from prontosched.telemetry.linux.check import MachineReport
from prontosched.telemetry.linux.threads import UNCOUNTED_STATE

Severity = Literal["stops", "misleads", "limits"]
# Most important first.
SEVERITIES: tuple[Severity, ...] = ("stops", "misleads", "limits")
BUS_SECONDS = 5.0
# Where `make install` and the packages put the unit.
UNIT_FOLDERS = ("/etc/systemd/system", "/usr/lib/systemd/system")
UNIFIED = ("cgroup.controllers", "unified/cgroup.controllers")
UNSYNCHRONISED = 0x40  # STA_UNSYNC of adjtimex(2)


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong: what was found, and the command that mends it.

    It `stops` decisions or what comes of them, `misleads` (what is decided rests on wrong numbers, or a
    scheduler acts on old ones) or `limits`: something is left out.
    """

    severity: Severity
    what: str
    remedy: str


def diagnose(
    settings: AgentSettings,
    report: MachineReport,
    agent: Client | UntrustedError | None,
    *,
    root: Path = Path("/"),
    now: Callable[[], float] = time.time,
) -> list[Problem]:
    """Return the problems of this machine, most important first.

    `settings` are those with which an agent would start here; `agent` is None where none answers, and an error where
    one does whose certificate is not trusted.
    """
    found = [
        *_permissions(report, root),
        *(_folder(settings) if agent is None and not is_service() else ()),
        *_agent(agent),
        *_kernel(report, root),
        *_clock(settings),
        *_bus(settings),
        *_gates(settings, now()),
    ]
    return sorted(found, key=lambda problem: SEVERITIES.index(problem.severity))


def _permissions(report: MachineReport, root: Path) -> Iterator[Problem]:
    for finding in report.findings:
        if finding.path == "proc/*/task/*/schedstat" and finding.state in ("absent", UNCOUNTED_STATE):
            what = "the kernel does not count what threads wait: CPU Ready is only estimated"
            absent = finding.state == "absent"
            mend = "install a kernel with CONFIG_SCHEDSTATS" if absent else _boot("delayacct")
            yield Problem("misleads", what, mend)
        elif finding.path == "proc/*/task/*/schedstat" and finding.state != "ok":
            what = f"threads of others cannot be read ({finding.state}): CPU Ready is only estimated"
            yield Problem("misleads", what, _show_threads(root))
        elif finding.state == "forbidden":
            what = f"{finding.path} may not be read: {finding.what} is missing"
            yield Problem("limits", what, finding.remedy)


def _folder(settings: AgentSettings) -> Iterator[Problem]:
    """Look at the state folder of an agent that this user would start; another's agent has a user of its own."""
    if settings.keep:
        folder = settings.state or default_folder()
        there = next(one for one in (folder, *folder.parents) if one.exists())
        if not os.access(there, os.W_OK | os.X_OK):
            what = f"{folder} may not be written: what is learned is lost at every restart"
            user = os.environ.get("USER", "pronto")
            # Never those above it: they belong to others.
            mend = f"chown -R {user}" if there == folder else f"install -d -m 700 -o {user}"
            yield Problem("misleads", what, f"sudo {mend} {folder}")


def _show_threads(root: Path) -> str:
    """Return what shows the threads of others: an option of the mount hides them, or a PID namespace."""
    try:
        mounts = (root / "proc/self/mounts").read_text(errors="replace")
    except OSError:
        mounts = ""
    if "hidepid=" in mounts:
        return f"sudo mount -o remount,hidepid=0 {root / 'proc'}"
    return (
        "docker run --pid=host -v /proc:/host/proc:ro … pronto agent --root /host, or hostPID: true in a pod"
    )


def _agent(agent: Client | UntrustedError | None) -> Iterator[Problem]:
    if agent is None:
        remedy = "sudo systemctl start pronto-agent" if is_service() else "pronto agent"
        yield Problem("limits", "no agent answers on this machine: nothing is decided", remedy)
        return
    if isinstance(agent, UntrustedError):
        yield Problem("limits", f"the agent cannot be asked: {agent}", "pronto check --agent URL --ca FILE")
        return
    try:
        status: dict[str, Any] = agent.get("/v1/status")
    except ProntoError as error:
        remedy = "pronto check --token-file FILE, with the token of the agent"
        yield Problem("limits", f"the agent does not tell its status: {error}", remedy)
        return
    restart = f"kill {status['pid']}, and `pronto agent` again"
    if is_service():
        restart = "sudo systemctl restart pronto-agent"
    if (decision := status.get("decision", {})).get("stale"):
        yield Problem("stops", f"the agent has no fresh telemetry: {decision['reason']}", restart)
    elif not (health := agent.health())["ok"]:
        yield Problem("stops", f"the agent does not decide: {health['reason']}", restart)
    disk = status["disk"]
    if disk and disk["last_error"]:
        what = f"the agent cannot write {disk['folder']}: {disk['last_error']}"
        yield Problem("misleads", what, f"df -h {disk['folder']}; ls -ld {disk['folder']}")
    gate, federation = status["followers"].get("gate", {}), status["followers"].get("federation", {})
    for one in gate.get("nodes", []):
        if one["last_error"]:
            what = f"gate {gate['gate']} refuses what the agent asks for {one['node']}: {one['last_error']}"
            yield Problem("stops", what, _rights(gate["gate"]))
    if federation.get("clashes"):
        names = ", ".join(federation["clashes"])
        what = f"two agents are called {names}: each takes the other's place in the federation"
        yield Problem("misleads", what, "set another `name` in /etc/pronto/pronto.toml of one of them")


def is_service() -> bool:
    """Tell whether systemd has a unit of the agent here."""
    return any(Path(folder, "pronto-agent.service").exists() for folder in UNIT_FOLDERS)


def _rights(gate: str) -> str:
    return {
        "slurm": "sudo sacctmgr modify user $USER set adminlevel=operator",
        "slurm-feature": "sudo sacctmgr modify user $USER set adminlevel=operator",
        "kubernetes": "helm upgrade pronto deploy/helm/pronto -n pronto --reuse-values",
    }.get(gate, f"pronto gate status --gate {gate}")


def _kernel(report: MachineReport, root: Path) -> Iterator[Problem]:
    states = {finding.path: finding.state for finding in report.findings}
    if states.get("sys/fs/cgroup", "ok") != "ok":
        what = "cgroups cannot be read: what quotas hold back counts as contention"
        mend = "sudo mount -t cgroup2 none /sys/fs/cgroup"
        yield Problem("misleads", what, mend if root == Path("/") else f"docker run -v /sys:{root}/sys:ro …")
    elif not any((root / "sys/fs/cgroup" / name).exists() for name in UNIFIED):
        what = "cgroup v1: the cgroups' CPU time, memory and number are not among the metrics"
        yield Problem("limits", what, _boot("systemd.unified_cgroup_hierarchy=1"))
    if any(path.endswith("pressure/cpu") and state != "ok" for path, state in states.items()):
        what = "pressure stall information is off: CPU Ready goes without its check"
        yield Problem("limits", what, _boot("psi=1"))


def _boot(argument: str) -> str:
    """Return the command that gives the kernel an argument at the next boot."""
    if shutil.which("grubby"):
        return f"sudo grubby --update-kernel=ALL --args={argument} && sudo reboot"
    line = f'GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX {argument}"'
    return f"echo '{line}' | sudo tee /etc/default/grub.d/pronto.cfg && sudo update-grub && sudo reboot"


def _clock(settings: AgentSettings) -> Iterator[Problem]:
    if (settings.gate or settings.nats) and clock_synchronised() is False:
        what = "the clock is not synchronised: refusals end by it, and other machines judge them by theirs"
        yield Problem("misleads", what, "sudo timedatectl set-ntp true")


def clock_synchronised() -> bool | None:
    """Tell whether the kernel's clock is kept by a time service; None where it does not tell."""
    state = (ctypes.c_long * 64)()  # a struct timex of zeros only asks
    try:
        answer = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(state))
    except (OSError, AttributeError):
        return None
    if answer < 0:
        return None
    # struct timex: modes, offset, freq, maxerror, esterror, status, each in a long's place.
    return not state[5] & UNSYNCHRONISED


def _bus(settings: AgentSettings) -> Iterator[Problem]:
    if settings.nats is None:
        return
    from prontosched.federation.address import Address
    from prontosched.federation.nats import NatsLink

    try:
        link = NatsLink(Address.parse(settings.nats), name="check", quiet=True)
    except ProntoError as error:
        yield Problem(
            "stops", f"the address of the bus is wrong: {error}", "pronto check, after `nats` is mended"
        )
        return
    try:
        if not link.wait_until_connected(BUS_SECONDS):
            what = f"the bus does not answer: {link.last_error or 'no answer'}; the agent decides alone"
            yield Problem("limits", what, f"pronto federation --nats '{settings.nats}'")
    finally:
        link.close()


def _gates(settings: AgentSettings, now: float) -> Iterator[Problem]:
    """Ask the gate that is set, or those whose scheduler is here, for rights and for marks left behind."""
    gates: list[Gate] = []
    if settings.gate is not None:
        try:
            check(settings)
            gates.append(gate_of(settings)[0])
        except ProntoError as error:
            remedy = f"pronto gate status --gate {settings.gate}"
            yield Problem("stops", f"gate {settings.gate} cannot work: {error}", remedy)
    else:
        for name in present_gates():
            try:
                gates.append(make_gate(name))
            except ProntoError:  # it needs options: then its marks are not ours to find
                continue
    for gate in gates:
        try:
            seen = marked(gate)
        except ProntoError as error:
            if settings.gate is not None:
                what = f"gate {gate.name} does not answer: {error}"
                yield Problem("stops", what, f"pronto gate status --gate {gate.name}")
            continue
        for node, one in seen.items():
            if one.lapsed(now) or (one.rank is not None and one.rank.expired(now)):
                mark = "a refusal" if one.ours else "a rank"
                what = f"{node} bears {mark} of ours at {gate.name} that has ended"
                yield Problem("misleads", what, f"pronto gate release --gate {gate.name}")
