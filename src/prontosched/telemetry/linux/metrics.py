"""What the files of /proc and /sys mean: CPU, memory, pressure, interrupts, disks, network, own cgroup.

A section turns the bytes of one file into a list of numbers and says in `metrics` what they are. The list
object of `metrics` stays the same until the layout of the file changes, for example when a disk appears, so
`is` tells a change.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

# More cores than this are only seen in the totals, so that a large machine is not all cores.
CORES_LIMIT = 32
CPU_MODES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal", "guest", "guest_nice")
CORE_MODES = 8
STAT_LINES = {
    b"intr": ("interrupts_per_second", True),
    b"ctxt": ("context_switches_per_second", True),
    b"processes": ("forks_per_second", True),
    b"procs_running": ("processes_running", False),
    b"procs_blocked": ("processes_blocked", False),
}
SOFTIRQS = ("hi", "timer", "net_tx", "net_rx", "block", "irq_poll", "tasklet", "sched", "hrtimer", "rcu")
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
# Devices beyond these are left out: a host of a thousand containers has a thousand interfaces.
DEVICES_LIMIT = 16
# Rendering /proc/interrupts costs milliseconds on large machines: with more cores it is not read.
INTERRUPTS_CORES_LIMIT = 16
# By place on a line: name and factor. Sectors are 512 bytes here whatever the device says.
DISK_FIELDS = {
    3: ("reads_per_second", 1.0),
    4: ("reads_merged_per_second", 1.0),
    5: ("read_bytes_per_second", 512.0),
    6: ("read_milliseconds_per_second", 1.0),
    7: ("writes_per_second", 1.0),
    8: ("writes_merged_per_second", 1.0),
    9: ("written_bytes_per_second", 512.0),
    10: ("write_milliseconds_per_second", 1.0),
    11: ("requests_in_flight", 1.0),
    12: ("busy_percent", 0.1),
    13: ("queue_milliseconds_per_second", 1.0),
    14: ("discards_per_second", 1.0),
    18: ("flushes_per_second", 1.0),
}
DEVICE_GAUGES = {"requests_in_flight"}
NETWORK_FIELDS = {
    1: ("received_bytes_per_second", 1.0),
    2: ("received_packets_per_second", 1.0),
    3: ("receive_errors_per_second", 1.0),
    4: ("receive_drops_per_second", 1.0),
    9: ("sent_bytes_per_second", 1.0),
    10: ("sent_packets_per_second", 1.0),
    11: ("send_errors_per_second", 1.0),
    12: ("send_drops_per_second", 1.0),
}
DISKS_SKIPPED = r"(loop|ram|zram|fd|sr)\d|([shv]d[a-z]+|xvd[a-z]+)\d+$|(nvme\d+n\d+|mmcblk\d+)p\d+$"
# Those of containers and virtual machines come and go with them: Calico, Cilium, AWS, Azure, GKE, libvirt, Proxmox.
INTERFACES_SKIPPED = (
    r"veth|cali|cni|tap|ifb|dummy|lxc(_health|[0-9a-f]{8})|eni[0-9a-f]{8}|azv[0-9a-f]{8}|gke[0-9a-f]{8}|"
    r"vnet\d|fw(br|ln|pr)\d"
)
PROTOCOL_GAUGES = {"Tcp CurrEstab"}
PROTOCOL_WANTED = {
    "Ip": {"InReceives", "InDiscards", "InDelivers", "OutRequests", "OutDiscards"},
    "Tcp": {
        *("ActiveOpens", "PassiveOpens", "AttemptFails", "EstabResets", "CurrEstab"),
        *("InSegs", "OutSegs", "RetransSegs", "InErrs", "OutRsts"),
    },
    "Udp": {"InDatagrams", "NoPorts", "InErrors", "OutDatagrams", "RcvbufErrors", "SndbufErrors"},
    "TcpExt": {
        *("TW", "DelayedACKs", "ListenOverflows", "ListenDrops", "TCPTimeouts", "TCPLostRetransmit"),
        *("TCPBacklogDrop", "TCPRcvQDrop", "SyncookiesSent", "TCPMemoryPressures"),
    },
    "IpExt": {"InOctets", "OutOctets"},
}


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


class Stat:
    """/proc/stat: CPU times by mode and core in percent, interrupts, context switches, forks; CPUs online."""

    path = "proc/stat"

    def __init__(self, ticks_per_second: float) -> None:
        self.cpus = 0
        self.metrics: list[Metric] = []
        self._percent = 100.0 / ticks_per_second
        self._cores: list[bytes] = []

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
        if cpus != self.cpus or cores != self._cores:
            self._describe(cpus, cores)
        found = [float(rest.get(name, b"nan").partition(b" ")[0] or b"nan") for name in STAT_LINES]
        return values + found + _padded(rest.get(b"softirq", b"").split()[1:11], len(SOFTIRQS))

    def _describe(self, cpus: int, cores: list[bytes]) -> None:
        self.cpus, self._cores = cpus, cores
        whole = self._percent / max(1, cpus)
        self.metrics = [
            *(Metric(f"cpu_{mode}_percent", whole, counter=True) for mode in CPU_MODES),
            *(
                Metric(f"{core.decode()}_{mode}_percent", self._percent, counter=True)
                for core in cores
                for mode in CPU_MODES[:CORE_MODES]
            ),
            *(Metric(name, counter=counter) for name, counter in STAT_LINES.values()),
            *(Metric(f"softirq_{kind}_per_second", counter=True) for kind in SOFTIRQS),
        ]


def _padded(words: list[bytes], length: int) -> list[float]:
    return [*map(float, words), *[math.nan] * (length - len(words))]


# Words of a file to the metrics among them, each with its place.
Describe = Callable[[list[bytes]], Iterable[tuple[int, Metric]]]


class WordTable:
    """A file whose numbers keep their places among its words until its layout changes.

    `describe` says which words are metrics; it is asked again when `layout`, made of the file and its words, has
    changed. `separators` separate words as blanks do, and `unit` is left out.
    """

    def __init__(
        self,
        path: str,
        describe: Describe,
        *,
        layout: Callable[[bytes, list[bytes]], object] = lambda data, words: len(words),
        separators: bytes = b"",
        unit: bytes = b"",
    ) -> None:
        self.path = path
        self.metrics: list[Metric] = []
        self._describe = describe
        self._layout = layout
        self._known: object = None
        self._blanks = bytes.maketrans(separators, b" " * len(separators)) if separators else None
        self._unit = unit
        self._places: list[int] = []

    def parse(self, data: bytes) -> list[float]:
        """Return the numbers wanted."""
        if self._unit:
            data = data.replace(self._unit, b"")
        if self._blanks:
            data = data.translate(self._blanks)
        words = data.split()
        layout = self._layout(data, words)
        if layout != self._known:
            self._known = layout
            found = [(place, metric) for place, metric in self._describe(words) if place < len(words)]
            self._places = [place for place, _ in found]
            self.metrics = [metric for _, metric in found]
        return [float(words[place]) for place in self._places]


def _fixed(path: str, *metrics: Metric, separators: bytes = b"") -> WordTable:
    """Return a file that begins with these numbers, e.g. /proc/loadavg."""
    return WordTable(path, lambda words: enumerate(metrics), separators=separators)


def _keyed(path: str, wanted: Callable[[str], Metric | None], *, unit: bytes = b"") -> WordTable:
    """Return a file of lines `name value`, of which some are wanted, e.g. /proc/vmstat."""

    def describe(words: list[bytes]) -> Iterable[tuple[int, Metric]]:
        for place in range(0, len(words) - 1, 2):
            metric = wanted(words[place].decode(errors="replace").rstrip(":"))
            if metric is not None:
                yield place + 1, metric

    return WordTable(path, describe, layout=lambda data, words: words[::2], unit=unit)


def _pressure(kind: str) -> WordTable:
    """Return /proc/pressure/KIND: share of time in which some, or all, tasks stood still for a resource."""

    def describe(words: list[bytes]) -> Iterable[tuple[int, Metric]]:
        for place, word in enumerate(words):
            if word in (b"some", b"full"):
                name = f"pressure_{kind}_{word.decode()}"
                yield words.index(b"total", place) + 1, Metric(f"{name}_percent", 1e-4, counter=True)
                yield words.index(b"avg10", place) + 1, Metric(f"{name}_10s_percent")

    return WordTable(f"proc/pressure/{kind}", describe, separators=b"=")


def _protocols(path: str) -> WordTable:
    """Return /proc/net/snmp or netstat: pairs of lines, names over numbers."""

    def describe(words: list[bytes]) -> Iterable[tuple[int, Metric]]:
        starts = [place for place, word in enumerate(words) if word.endswith(b":")]
        for start, values in zip(starts[::2], starts[1::2], strict=False):
            protocol = words[start].decode(errors="replace").rstrip(":")
            for place in range(start + 1, values):
                field = words[place].decode(errors="replace")
                if field in PROTOCOL_WANTED.get(protocol, ()):
                    gauge = f"{protocol} {field}" in PROTOCOL_GAUGES
                    name = f"{protocol.lower()}_{_snake(field.removeprefix('TCP'))}"
                    yield (
                        values + place - start,
                        Metric(name if gauge else f"{name}_per_second", 1.0, not gauge),
                    )

    return WordTable(path, describe, layout=lambda data, words: data.splitlines()[::2])


def _snake(name: str) -> str:
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()


def _sockets(path: str) -> WordTable:
    """Return /proc/net/sockstat: lines of a protocol and pairs of name and number."""

    def describe(words: list[bytes]) -> Iterable[tuple[int, Metric]]:
        protocol = b""
        for place, word in enumerate(words):
            if word.endswith(b":"):
                protocol = word[:-1]
            elif not word.isdigit() and protocol in (b"sockets", b"TCP", b"UDP"):
                name = f"{protocol.decode()}_{word.decode()}".lower().removeprefix("sockets_")
                yield place + 1, Metric(f"sockets_{name}")

    return WordTable(path, describe)


class Devices:
    """A file with one line per device and the same numbers on each; devices never used are left out."""

    def __init__(
        self, path: str, fields: dict[int, tuple[str, float]], *, prefix: str, name_place: int, skip: str
    ) -> None:
        self.path = path
        self.metrics: list[Metric] = []
        self._fields = fields
        self._prefix = prefix
        self._name_place = name_place
        self._skip = re.compile(skip.encode())
        self._known: list[bytes] = []

    def parse(self, data: bytes) -> list[float]:
        """Return the numbers of all devices."""
        values: list[float] = []
        names: list[bytes] = []
        # Lines of a heading have bars.
        for line in data.splitlines():
            if len(names) == DEVICES_LIMIT:
                break
            words = line.replace(b":", b" ").split()
            if len(words) <= self._name_place or self._skip.match(words[self._name_place]) or b"|" in line:
                continue
            numbers = [float(words[place]) if place < len(words) else 0.0 for place in self._fields]
            name = words[self._name_place]
            if any(numbers) or name in self._known:
                names.append(name)
                values += numbers
        if names != self._known:
            self._known = names
            self.metrics = [
                Metric(f"{self._prefix}_{name}_{field}", factor, field not in DEVICE_GAUGES)
                for name in [name.decode(errors="replace") for name in names]
                for field, factor in self._fields.values()
            ]
        return values


class Softnet:
    """/proc/net/softnet_stat: packets handled, dropped and put off, over all cores."""

    def __init__(self, path: str) -> None:
        self.path = path
        kinds = ("processed", "dropped", "squeezed")
        self.metrics = [Metric(f"softnet_{kind}_per_second", counter=True) for kind in kinds]

    def parse(self, data: bytes) -> list[float]:
        """Return the three sums."""
        rows = [line.split()[:3] for line in data.splitlines()]
        return [float(sum(int(row[place], 16) for row in rows)) for place in range(3)]


class NamedInterrupts:
    """/proc/interrupts: those with a name instead of a number, over all cores."""

    path = "proc/interrupts"

    def __init__(self) -> None:
        self.metrics: list[Metric] = []
        self._names: list[bytes] = []

    def parse(self, data: bytes) -> list[float]:
        """Return the sums."""
        lines = data.splitlines()
        cores = len(lines[0].split()) if lines else 0
        names: list[bytes] = []
        values: list[float] = []
        for line in lines[1:]:
            words = line.split(None, cores + 1)
            if words[0][:1].isalpha() and words[0] not in (b"ERR:", b"MIS:") and len(words) > cores:
                names.append(words[0])
                values.append(sum(map(float, words[1 : cores + 1])))
        if names != self._names:
            self._names = names
            kinds = [name.decode().rstrip(":").lower() for name in names]
            self.metrics = [Metric(f"interrupts_{kind}_per_second", counter=True) for kind in kinds]
        return values


def _memory(name: str) -> Metric | None:
    if MEMORY_UNWANTED.fullmatch(name):
        return None
    return Metric(f"memory_{_snake(name.removeprefix('Mem')).replace('(', '_').rstrip(')')}_bytes", 1024.0)


def _vmstat(name: str) -> Metric | None:
    return Metric(f"vm_{name}_per_second", counter=True) if VMSTAT_WANTED.fullmatch(name) else None


def _cgroup_cpu(name: str) -> Metric | None:
    if name.endswith("_usec"):
        return Metric(f"cgroup_cpu_{name.removesuffix('_usec')}_percent", 1e-4, counter=True)
    return Metric(f"cgroup_cpu_{name}_per_second", counter=True)


def _cgroup_memory(name: str) -> Metric | None:
    return Metric(f"cgroup_memory_{name}_events_per_second", counter=True)


def _cgroup_count(name: str) -> Metric | None:
    return Metric("cgroup_descendants") if name == "nr_descendants" else None


def sections(*, network: str, cgroup: str | None) -> list[Section]:
    """Return the sections of a machine but `Stat`, by the folders of its network files and of a cgroup v2."""
    load = map(Metric, ("load_1", "load_5", "load_15", "threads_runnable", "threads"))
    found: list[Section] = [
        _fixed("proc/loadavg", *load, separators=b"/"),
        _keyed("proc/meminfo", _memory, unit=b" kB"),
        _keyed("proc/vmstat", _vmstat),
        *map(_pressure, ("cpu", "io", "memory", "irq")),
        _fixed("proc/sys/fs/file-nr", Metric("files_open")),
        _fixed("proc/sys/fs/inode-nr", Metric("inodes")),
        _fixed("proc/sys/fs/dentry-state", Metric("dentries"), Metric("dentries_unused")),
        NamedInterrupts(),
        Devices("proc/diskstats", DISK_FIELDS, prefix="disk", name_place=2, skip=DISKS_SKIPPED),
        Devices(f"{network}/dev", NETWORK_FIELDS, prefix="network", name_place=0, skip=INTERFACES_SKIPPED),
        _protocols(f"{network}/snmp"),
        _protocols(f"{network}/netstat"),
        _sockets(f"{network}/sockstat"),
        Softnet(f"{network}/softnet_stat"),
    ]
    if cgroup is not None:
        found += [
            _keyed(f"{cgroup}/cpu.stat", _cgroup_cpu),
            _keyed(f"{cgroup}/memory.events", _cgroup_memory),
            _fixed(f"{cgroup}/memory.current", Metric("cgroup_memory_bytes")),
            _fixed(f"{cgroup}/memory.swap.current", Metric("cgroup_swap_bytes")),
            _fixed(f"{cgroup}/pids.current", Metric("cgroup_threads")),
            _keyed(f"{cgroup}/cgroup.stat", _cgroup_count),
        ]
    return found
