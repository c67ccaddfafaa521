"""The cgroups of a Linux machine: which of them a quota held back, which are idle, and what they are called.

Covers cgroup v2 and the `cpu` controller of v1. A thread that its cgroup's quota holds back counts as waiting
in `run_delay`, although no CPU would help it; the time is in `throttled_usec` (v2) or `throttled_time` (v1).
"""

from __future__ import annotations

import functools
import heapq
import itertools
import os
import re
from collections.abc import Mapping

from prontosched.telemetry.linux.files import Files, read_small

# Quotas and `cpu.idle` change rarely.
RECHECK_SECONDS = 30.0
FORGET_SECONDS = 300.0
CGROUPS_LIMIT = 1024
# At most this many have their throttled time read at every scan, and are looked at again for quotas.
LIMITED_READ = 128
CHECKS_PER_SCAN = 64
WALK_LIMIT = 4096
NAME_LENGTH = 40
THROTTLED = re.compile(rb"^throttled_(usec|time) (\d+)", re.MULTILINE)
HEXADECIMAL = re.compile(r"([0-9a-f]{12})[0-9a-f]{52}")
POD = re.compile(r"pod([0-9a-f]{8})[-_0-9a-f]{24,}")
JOB = re.compile(r"job_(\d+)")
# What holds a whole session or machine says less than the process does.
VAGUE = re.compile(r"(session-.*|init|app-.*|vte-spawn-.*|tmux-.*)\.scope|user@.*|.*\.slice|")


class Cgroup:
    """One cgroup in which there are threads.

    Attributes
    ----------
    name
        What to call it, empty where the name of a process says more.
    idle
        Whether it or one above runs only when nothing else wants to (`cpu.idle`).
    limited
        Whether it or one above has a quota.
    throttled
        Seconds for which a quota held it back since the last scan, summed over CPUs.
    carried
        Of those of the scan before, what no thread's waiting has answered for yet.
    """

    __slots__ = (
        "_files",
        "_last",
        "carried",
        "checked",
        "idle",
        "limited",
        "name",
        "path",
        "seen",
        "throttled",
    )

    def __init__(self, path: str, name: str) -> None:
        self.path = path
        self.name = name
        self.idle = False
        self.limited = False
        self.throttled = 0.0
        self.carried = 0.0
        self.checked = float("-inf")
        self.seen = 0.0
        self._last = 0.0
        self._files: list[str] = []

    def check(self, root: str, folder: str, *, unified: bool) -> None:
        """Look for quotas and `cpu.idle`, here and above."""
        quota = "cpu.max" if unified else "cpu.cfs_quota_us"
        here = folder
        nearest = ""
        limited: list[str] = []
        idle = False
        while len(here) >= len(root):
            content = read_small(f"{here}/{quota}")
            if content is not None:
                nearest = nearest or here
                if not content.startswith((b"max", b"-")):
                    limited.append(here)
            idle = idle or (read_small(f"{here}/cpu.idle") or b"").startswith(b"1")
            here = os.path.dirname(here)
        self.idle, self.limited = idle, bool(limited)
        # The local file has what quotas above did to this one as well; older kernels lack it.
        local = f"{nearest}/cpu.stat.local"
        if THROTTLED.search(read_small(local) or b""):
            self._files = [local]
        else:
            self._files = [f"{one}/cpu.stat" for one in limited]

    def advance(self, most_seconds: float) -> None:
        """Read for how long it was held back since the last time."""
        total = 0.0
        for path in self._files:
            found = THROTTLED.search(read_small(path) or b"")
            if found is not None:
                total += int(found[2]) * (1e-6 if found[1] == b"usec" else 1e-9)
        # Of one met for the first time it is not known when; more than the time since the last scan it is not.
        self.throttled = min(max(0.0, total - self._last), most_seconds)
        self._last = total


class Cgroups:
    """The cgroups of the threads that wait or run: at most 1,024, a few hundred bytes each."""

    def __init__(self, files: Files) -> None:
        self._known: dict[str, Cgroup] = {}
        self._now = 0.0
        folders = ("sys/fs/cgroup", "sys/fs/cgroup/unified")
        v1 = ("sys/fs/cgroup/cpu", "sys/fs/cgroup/cpu,cpuacct")
        self._v2 = next((files.path(f) for f in folders if files.exists(f"{f}/cgroup.controllers")), "")
        self._v1 = next((files.path(f) for f in v1 if files.exists(f"{f}/cpu.cfs_quota_us")), "")
        self._places: list[str] = []
        self._placed = float("-inf")

    @property
    def told_apart(self) -> bool:
        """Whether cgroups can be read, so that what quotas held back can be told from other waiting."""
        return bool(self._v1 or self._v2)

    def advance(self, seconds: float, cpus: int, waited: Mapping[str, int]) -> None:
        """Read for how long quotas held cgroups back since the last time.

        `waited` is how long the threads of each waited, by its path: of too many, those that waited most are read.
        """
        self._now += seconds if seconds > 0.0 else 0.0
        most = max(0.0, seconds) * cpus if seconds == seconds else 0.0
        checks = CHECKS_PER_SCAN
        for path, cgroup in list(self._known.items()):
            if self._now - cgroup.seen > FORGET_SECONDS:
                del self._known[path]
            elif checks and self._now - cgroup.checked > RECHECK_SECONDS:
                checks -= 1
                self._check(cgroup)
            cgroup.throttled = 0.0
        limited = [one for one in self._known.values() if one.limited]
        if len(limited) > LIMITED_READ:
            limited = heapq.nlargest(LIMITED_READ, limited, key=lambda one: waited.get(one.path, 0))
        for cgroup in limited:
            cgroup.advance(most)

    def limited(self) -> list[Cgroup]:
        """Return those that a quota held back since the last scan or the one before."""
        return [one for one in self._known.values() if one.throttled > 0.0 or one.carried > 0.0]

    def of_process(self, folder: str, seconds: float, cpus: int) -> Cgroup | None:
        """Return the cgroup of a process, by its folder in /proc; None where it cannot be told."""
        data = read_small(f"{folder}/cgroup")
        if data is None:
            return None
        path, name = _place(os.fsdecode(data))
        cgroup = self._known.get(path)
        if cgroup is None:
            cgroup = Cgroup(path, name)
            self._check(cgroup)
            if cgroup.limited:
                cgroup.advance(max(0.0, seconds) * cpus if seconds == seconds else 0.0)
            if len(self._known) < CGROUPS_LIMIT:
                self._known[path] = cgroup
        cgroup.seen = self._now
        return cgroup

    def weight(self, cgroup: Cgroup) -> float:
        """Return how much a cgroup weighs against its neighbours, 1 being usual; the product up to the root."""
        version, _, path = cgroup.path.partition(":")
        root, name, usual = (
            (self._v1, "cpu.shares", 1024) if version == "1" else (self._v2, "cpu.weight", 100)
        )
        folder, weight = self._folder(root, path) if root else "", 1.0
        while len(folder) > len(root):
            content = read_small(f"{folder}/{name}") or b""
            weight *= int(content) / usual if content.strip().isdigit() else 1.0
            folder = os.path.dirname(folder)
        return weight

    def _check(self, cgroup: Cgroup) -> None:
        cgroup.checked = self._now
        version, _, path = cgroup.path.partition(":")
        root = self._v1 if version == "1" else self._v2
        if root:
            cgroup.check(root, self._folder(root, path), unified=version == "2")

    def _folder(self, root: str, path: str) -> str:
        """Return where a cgroup lies; in a cgroup namespace a path may lead above what it shows."""
        if "/.." not in path:
            return root + path.rstrip("/")
        end = re.sub(r"^(/\.\.)+", "", path)
        if os.path.isdir(root + end):
            return root + end.rstrip("/")
        found = [place for place in self._places if place.endswith(end)]
        # Looking through all cgroups takes a tenth of a second on a machine of many pods: only for one not known yet.
        if not found and self._now - self._placed > RECHECK_SECONDS:
            walk = itertools.islice(os.walk(root), WALK_LIMIT)
            self._places, self._placed = [folder[len(root) :] for folder, _, _ in walk], self._now
            found = [place for place in self._places if place.endswith(end)]
        return root + found[0] if len(found) == 1 else root


@functools.lru_cache(CGROUPS_LIMIT)
def _place(text: str) -> tuple[str, str]:
    """Return where a process is, as `1:PATH` or `2:PATH`, and what to call that."""
    unified, cpu, systemd = "/", None, "/"
    for line in text.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            unified = path or "/"
        elif "cpu" in controllers.split(","):
            cpu = path or "/"
        elif controllers == "name=systemd":
            systemd = path or "/"
    named = next((path for path in (cpu, unified, systemd) if path and path.strip("/.")), "")
    return (f"2:{unified}" if cpu is None else f"1:{cpu}"), cgroup_name(named)


def cgroup_name(path: str) -> str:
    """Return what to call a cgroup: its unit, pod, container or job; empty where that says nothing.

    Examples
    --------
    >>> cgroup_name("/system.slice/postgres.service")
    'postgres.service'
    >>> cgroup_name("/kubepods.slice/kubepods-pod1c2d3e4f_0000_0000_0000_000000000000.slice/cri-containerd-x.scope")
    'pod 1c2d3e4f'
    >>> cgroup_name("/system.slice/slurmstepd.scope/job_12/step_0/user/task_0")
    'job 12'
    >>> cgroup_name("/user.slice/user-1000.slice/session-3.scope")
    ''
    """
    if pod := POD.search(path):
        return f"pod {pod[1]}"
    if job := JOB.search(path):
        return f"job {job[1]}"
    parts = [part for part in path.split("/") if part.strip(".")]
    unit = next((part for part in reversed(parts) if part.endswith((".service", ".scope"))), None)
    name = unit or (parts[-1] if parts else "")
    if VAGUE.fullmatch(name):
        return ""
    return plain_name(HEXADECIMAL.sub(r"\1", name).removesuffix(".scope"))


def printable(text: str) -> str:
    """Return a text without what a terminal would obey: names are made by users.

    Examples
    --------
    >>> printable("a\\x1b[2Jb")
    'a?[2Jb'
    """
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def plain_name(text: str) -> str:
    """Return a name as printable text of bounded length."""
    shown = printable(text)
    return shown if len(shown) <= NAME_LENGTH else shown[: NAME_LENGTH - 1] + "…"
