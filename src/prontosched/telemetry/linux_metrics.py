"""What the files of /proc mean: CPU, memory, pressure.

Each section turns the bytes of one file into a list of numbers, and says what they are in `metrics`. The
list object stays the same until the file's layout changes (a disk or a core appears), so a comparison by
`is` tells a change. Disks, network and cgroups are in `linux_devices`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from operator import itemgetter
from typing import NamedTuple, Protocol

# More cores than this are only seen in the totals, so that a large machine is not all cores.
CORES_LIMIT = 32


class Metric(NamedTuple):
    """What one number of a section is.

    `factor` brings it to the unit of its name; a `counter` becomes a rate per second first.
    """

    name: str
    factor: float = 1.0
    counter: bool = False


class Section(Protocol):
    """One file and what its numbers mean."""

    path: str
    metrics: list[Metric]

    def parse(self, data: bytes) -> list[float]:
        """Return the numbers, in the order of `metrics`."""
        ...


CPU_MODES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal", "guest", "guest_nice")
CORE_MODES = 8
SOFTIRQS = (
    "hi",
    "timer",
    "net_tx",
    "net_rx",
    "block",
    "irq_poll",
    "tasklet",
    "sched",
    "hrtimer",
    "rcu",
)


class Stat:
    """/proc/stat: CPU times by mode and core in percent, interrupts, context switches, forks.

    Attributes
    ----------
    cpus
        How many CPUs are online.
    """

    path = "proc/stat"

    def __init__(self, ticks_per_second: float) -> None:
        self._percent = 100.0 / ticks_per_second
        self.cpus = 0
        self._cores: tuple[bytes, ...] = ()
        self.metrics: list[Metric] = []

    def parse(self, data: bytes) -> list[float]:
        """Return the numbers; the ten of `cpu` come first."""
        values: list[float] = []
        cores: list[bytes] = []
        cpus = 0
        rest: dict[bytes, bytes] = {}
        for line in data.splitlines():
            if line[:3] == b"cpu":
                words = line.split()
                if words[0] == b"cpu":
                    values += _padded(words[1:11], 10)
                    continue
                cpus += 1
                if cpus <= CORES_LIMIT:
                    cores.append(words[0])
                    values += _padded(words[1 : 1 + CORE_MODES], CORE_MODES)
            else:
                name, _, content = line.partition(b" ")
                rest[name] = content
        if len(values) < len(CPU_MODES):
            raise ValueError("no line of all CPUs")
        if cpus != self.cpus or tuple(cores) != self._cores:
            self._describe(cpus, tuple(cores))
        for name in (b"intr", b"ctxt", b"processes", b"procs_running", b"procs_blocked"):
            values.append(float(rest.get(name, b"nan").partition(b" ")[0] or b"nan"))
        values += _padded(rest.get(b"softirq", b"").split()[1:11], len(SOFTIRQS))
        return values

    def _describe(self, cpus: int, cores: tuple[bytes, ...]) -> None:
        self.cpus, self._cores = cpus, cores
        whole = self._percent / max(1, cpus)
        self.metrics = [Metric(f"cpu_{mode}_percent", whole, counter=True) for mode in CPU_MODES]
        self.metrics += [
            Metric(f"{core.decode()}_{mode}_percent", self._percent, counter=True)
            for core in cores
            for mode in CPU_MODES[:CORE_MODES]
        ]
        self.metrics += [
            Metric("interrupts_per_second", counter=True),
            Metric("context_switches_per_second", counter=True),
            Metric("forks_per_second", counter=True),
            Metric("processes_running"),
            Metric("processes_blocked"),
        ]
        self.metrics += [Metric(f"softirq_{kind}_per_second", counter=True) for kind in SOFTIRQS]


def _padded(words: list[bytes], length: int) -> list[float]:
    values = [float(word) for word in words]
    return values + [float("nan")] * (length - len(values))


class Fixed:
    """A small file of the same numbers in the same places, e.g. /proc/loadavg."""

    def __init__(self, path: str, places: dict[int, Metric], *, separators: bytes = b"") -> None:
        self.path = path
        self.metrics = list(places.values())
        self._places = tuple(places)
        self._separators = separators

    def parse(self, data: bytes) -> list[float]:
        """Return the numbers."""
        for separator in self._separators:
            data = data.replace(bytes([separator]), b" ")
        words = data.split()
        return [float(words[place]) if place < len(words) else float("nan") for place in self._places]


class Keyed:
    """A file of lines `name value`, of which some are wanted, e.g. /proc/vmstat."""

    def __init__(self, path: str, wanted: Callable[[str], Metric | None], *, unit: bytes = b"") -> None:
        self.path = path
        self.metrics: list[Metric] = []
        self._wanted = wanted
        self._unit = unit
        self._names: list[bytes] = []
        self._pick: Callable[[list[bytes]], tuple[bytes, ...]] = lambda words: ()

    def parse(self, data: bytes) -> list[float]:
        """Return the numbers wanted."""
        if self._unit:
            data = data.replace(self._unit, b"")
        words = data.split()
        if len(words) % 2:
            words.pop()
        names = words[::2]
        if names != self._names:
            self._describe(names)
        return [float(word) for word in self._pick(words)]

    def _describe(self, names: list[bytes]) -> None:
        self._names = names
        found = [
            (2 * place + 1, metric)
            for place, name in enumerate(names)
            if (metric := self._wanted(name.decode(errors="replace").rstrip(":"))) is not None
        ]
        self.metrics = [metric for _, metric in found]
        places = [place for place, _ in found]
        if not places:
            self._pick = lambda words: ()
        elif len(places) == 1:
            self._pick = lambda words: (words[places[0]],)
        else:
            self._pick = itemgetter(*places)


# Constant on a running machine, or said better elsewhere.
MEMORY_UNWANTED = re.compile(
    r"MemTotal|SwapTotal|CommitLimit|Vmalloc(Total|Chunk)|Huge[pP]age.*|Hugetlb|DirectMap.*|Cma.*|NFS_Unstable|"
    r"Bounce|HardwareCorrupted|.*PmdMapped|WritebackTmp|SecPageTables|Unaccepted|Balloon"
)
VMSTAT_WANTED = re.compile(
    r"pgpg(in|out)|pswp(in|out)|pg(maj)?fault|pg(free|activate|deactivate|refill|reuse|rotated|inodesteal)|"
    r"pg(scan|steal)_(kswapd|direct|anon|file)|pgalloc_(dma32|normal|movable)|allocstall_(normal|movable)|"
    r"workingset_(refault|activate|restore)(_anon|_file)?|compact_(stall|fail|success|migrate_scanned)|"
    r"thp_(fault_alloc|fault_fallback|collapse_alloc|split_page)|numa_(hit|miss|foreign|local|pages_migrated)|"
    r"pgmigrate_(success|fail)|slabs_scanned|pageoutrun|kswapd_(low|high)_wmark_hit_quickly|oom_kill|"
    r"nr_(dirtied|written)|balloon_(inflate|deflate)|swap_ra(_hit)?|unevictable_pgs_(culled|rescued)|z?swp(in|out)"
)


def memory_metric(name: str) -> Metric | None:
    """Return what a line of /proc/meminfo is, None if not wanted."""
    if MEMORY_UNWANTED.fullmatch(name):
        return None
    words = re.sub(r"([a-z])([A-Z])", r"\1_\2", name.removeprefix("Mem")).replace("(", "_").rstrip(")")
    return Metric(f"memory_{words.lower()}_bytes", 1024.0)


def vmstat_metric(name: str) -> Metric | None:
    """Return what a line of /proc/vmstat is, None if not wanted."""
    return Metric(f"vm_{name}_per_second", counter=True) if VMSTAT_WANTED.fullmatch(name) else None


class Pressure:
    """/proc/pressure/…: share of time in which some, or all, tasks stood still for a resource."""

    def __init__(self, path: str, name: str) -> None:
        self.path = path
        self.metrics: list[Metric] = []
        self._name = name
        self._kinds: list[bytes] = []

    def parse(self, data: bytes) -> list[float]:
        """Return total (microseconds) and avg10 of each line."""
        values: list[float] = []
        kinds: list[bytes] = []
        for line in data.splitlines():
            words = line.split()
            kinds.append(words[0])
            fields = dict(word.split(b"=", 1) for word in words[1:])
            values += (float(fields.get(b"total", b"nan")), float(fields.get(b"avg10", b"nan")))
        if kinds != self._kinds:
            self._kinds = kinds
            self.metrics = [
                metric
                for kind in kinds
                for metric in (
                    Metric(f"pressure_{self._name}_{kind.decode()}_percent", 1e-4, counter=True),
                    Metric(f"pressure_{self._name}_{kind.decode()}_10s_percent"),
                )
            ]
        return values


def machine_sections() -> list[Section]:
    """Return the sections for memory, pressure and the kernel's tables; `Stat` stands for itself."""
    return [
        Fixed(
            "proc/loadavg",
            {
                0: Metric("load_1"),
                1: Metric("load_5"),
                2: Metric("load_15"),
                3: Metric("threads_runnable"),
                4: Metric("threads"),
            },
            separators=b"/",
        ),
        Keyed("proc/meminfo", memory_metric, unit=b" kB"),
        Keyed("proc/vmstat", vmstat_metric),
        *(Pressure(f"proc/pressure/{kind}", kind) for kind in ("cpu", "io", "memory", "irq")),
        Fixed("proc/sys/fs/file-nr", {0: Metric("files_open")}),
        Fixed("proc/sys/fs/inode-nr", {0: Metric("inodes")}),
        Fixed("proc/sys/fs/dentry-state", {0: Metric("dentries"), 1: Metric("dentries_unused")}),
    ]
