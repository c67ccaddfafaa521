"""What the files of /proc and /sys mean: CPU, memory, pressure, interrupts, disks, network, own cgroup.

A section turns the bytes of one file into a list of numbers and says in `metrics` what they are. The list
object of `metrics` stays the same until the layout of the file changes, for example when a disk appears, so
`is` tells a change.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from operator import itemgetter
from typing import NamedTuple, Protocol

# More cores than this are only seen in the totals, so that a large machine is not all cores.
CORES_LIMIT = 32
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
# Rendering /proc/interrupts costs milliseconds on large machines.
INTERRUPTS_CORES_LIMIT = 16
# Sectors are 512 bytes here whatever the device says.
DISK_FIELDS = {
    3: ("reads_per_second", 1.0, True),
    4: ("reads_merged_per_second", 1.0, True),
    5: ("read_bytes_per_second", 512.0, True),
    6: ("read_milliseconds_per_second", 1.0, True),
    7: ("writes_per_second", 1.0, True),
    8: ("writes_merged_per_second", 1.0, True),
    9: ("written_bytes_per_second", 512.0, True),
    10: ("write_milliseconds_per_second", 1.0, True),
    11: ("requests_in_flight", 1.0, False),
    12: ("busy_percent", 0.1, True),
    13: ("queue_milliseconds_per_second", 1.0, True),
    14: ("discards_per_second", 1.0, True),
    18: ("flushes_per_second", 1.0, True),
}
NETWORK_FIELDS = {
    1: ("received_bytes_per_second", 1.0, True),
    2: ("received_packets_per_second", 1.0, True),
    3: ("receive_errors_per_second", 1.0, True),
    4: ("receive_drops_per_second", 1.0, True),
    9: ("sent_bytes_per_second", 1.0, True),
    10: ("sent_packets_per_second", 1.0, True),
    11: ("send_errors_per_second", 1.0, True),
    12: ("send_drops_per_second", 1.0, True),
}
DISKS_SKIPPED = r"(loop|ram|zram|fd|sr)\d|([shv]d[a-z]+|xvd[a-z]+)\d+$|(nvme\d+n\d+|mmcblk\d+)p\d+$"
INTERFACES_SKIPPED = r"veth|cali|cni|tap|ifb|dummy"
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


class Devices:
    """A file with one line per device and the same numbers on each."""

    def __init__(
        self,
        path: str,
        fields: dict[int, tuple[str, float, bool]],
        *,
        prefix: str,
        name_place: int,
        skip: str,
        header_lines: int = 0,
    ) -> None:
        self.path = path
        self.metrics: list[Metric] = []
        self._fields = fields
        self._prefix = prefix
        self._name_place = name_place
        self._skip = re.compile(skip.encode())
        self._header_lines = header_lines
        self._known: list[bytes] = []

    def parse(self, data: bytes) -> list[float]:
        """Return the numbers of all devices that were ever used."""
        values: list[float] = []
        names: list[bytes] = []
        for line in data.splitlines()[self._header_lines :]:
            words = line.replace(b":", b" ").split()
            if len(words) <= self._name_place or self._skip.match(words[self._name_place]):
                continue
            numbers = [float(words[place]) if place < len(words) else 0.0 for place in self._fields]
            name = words[self._name_place]
            if len(names) < DEVICES_LIMIT and (any(numbers) or name in self._known):
                names.append(name)
                values += numbers
        if names != self._known:
            self._known = names
            self.metrics = [
                Metric(f"{self._prefix}_{name.decode(errors='replace')}_{field}", factor, counter)
                for name in names
                for field, factor, counter in self._fields.values()
            ]
        return values


class Protocols:
    """/proc/net/snmp and netstat: pairs of lines, names over numbers."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.metrics: list[Metric] = []
        self._names: list[bytes] = []
        self._places: list[tuple[int, int]] = []

    def parse(self, data: bytes) -> list[float]:
        """Return the numbers wanted."""
        lines = data.splitlines()
        names = lines[0::2]
        if names != self._names:
            self._describe(names)
        rows = [line.split() for line in lines[1::2]]
        return [
            float(rows[line][place]) if line < len(rows) and place < len(rows[line]) else float("nan")
            for line, place in self._places
        ]

    def _describe(self, names: list[bytes]) -> None:
        self._names, self._places, self.metrics = names, [], []
        for line, content in enumerate(names):
            protocol, *fields = content.decode(errors="replace").split()
            protocol = protocol.rstrip(":")
            for place, field in enumerate(fields, start=1):
                if field not in PROTOCOL_WANTED.get(protocol, ()):
                    continue
                words = re.sub(r"([a-z])([A-Z])", r"\1_\2", field.removeprefix("TCP")).lower()
                gauge = f"{protocol} {field}" in PROTOCOL_GAUGES
                name = f"{protocol.lower()}_{words}" + ("" if gauge else "_per_second")
                self._places.append((line, place))
                self.metrics.append(Metric(name, counter=not gauge))


class Sockets:
    """/proc/net/sockstat: lines of a protocol and pairs of name and number."""

    path = "net/sockstat"

    def __init__(self, path: str) -> None:
        self.path = path
        self.metrics: list[Metric] = []
        self._names: list[bytes] = []

    def parse(self, data: bytes) -> list[float]:
        """Return all numbers."""
        names: list[bytes] = []
        values: list[float] = []
        for line in data.splitlines():
            words = line.split()
            if words[0] in (b"sockets:", b"TCP:", b"UDP:"):
                names += [words[0][:-1] + b"_" + word for word in words[1::2]]
                values += [float(word) for word in words[2::2]]
        if names != self._names:
            self._names = names
            self.metrics = [
                Metric(f"sockets_{name.decode().lower().removeprefix('sockets_')}") for name in names
            ]
        return values


class Softnet:
    """/proc/net/softnet_stat: packets handled, dropped and put off, over all cores."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.metrics = [
            Metric(f"softnet_{kind}_per_second", counter=True)
            for kind in ("processed", "dropped", "squeezed")
        ]

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
        if cores <= INTERRUPTS_CORES_LIMIT:
            for line in lines[1:]:
                words = line.split(None, cores + 1)
                if words[0][:1].isalpha() and words[0] not in (b"ERR:", b"MIS:") and len(words) > cores:
                    names.append(words[0])
                    values.append(sum(map(float, words[1 : cores + 1])))
        if names != self._names:
            self._names = names
            self.metrics = [
                Metric(f"interrupts_{name.decode().rstrip(':').lower()}_per_second", counter=True)
                for name in names
            ]
        return values


def _cgroup_cpu(name: str) -> Metric | None:
    if name.endswith("_usec"):
        return Metric(f"cgroup_cpu_{name.removesuffix('_usec')}_percent", 1e-4, counter=True)
    return Metric(f"cgroup_cpu_{name}_per_second", counter=True)


def _cgroup_memory_events(name: str) -> Metric | None:
    return Metric(f"cgroup_memory_{name}_events_per_second", counter=True)


def device_sections(*, network: str, cgroup: str | None, interrupts: bool = True) -> list[Section]:
    """Return the sections for devices, network and cgroup.

    Parameters
    ----------
    network
        Folder of the network files, e.g. `proc/net`.
    cgroup
        Folder of a cgroup v2, None where there is none.
    interrupts
        Whether named interrupts are wanted.
    """
    sections: list[Section] = [NamedInterrupts()] if interrupts else []
    sections += [
        Devices("proc/diskstats", DISK_FIELDS, prefix="disk", name_place=2, skip=DISKS_SKIPPED),
        Devices(
            f"{network}/dev",
            NETWORK_FIELDS,
            prefix="network",
            name_place=0,
            skip=INTERFACES_SKIPPED,
            header_lines=2,
        ),
        Protocols(f"{network}/snmp"),
        Protocols(f"{network}/netstat"),
        Sockets(f"{network}/sockstat"),
        Softnet(f"{network}/softnet_stat"),
    ]
    if cgroup is not None:
        sections += [
            Keyed(f"{cgroup}/cpu.stat", _cgroup_cpu),
            Keyed(f"{cgroup}/memory.events", _cgroup_memory_events),
            Fixed(f"{cgroup}/memory.current", {0: Metric("cgroup_memory_bytes")}),
            Fixed(f"{cgroup}/memory.swap.current", {0: Metric("cgroup_swap_bytes")}),
            Fixed(f"{cgroup}/pids.current", {0: Metric("cgroup_threads")}),
            Keyed(f"{cgroup}/cgroup.stat", _cgroup_count),
        ]
    return sections


def _cgroup_count(name: str) -> Metric | None:
    wanted = {"nr_descendants": "cgroup_descendants"}
    return Metric(wanted[name]) if name in wanted else None
