"""What the files of /proc and /sys mean: interrupts, disks, network, sockets, cgroups.

The rest of the machine is in `linux_metrics`.
"""

from __future__ import annotations

import re

from prontosched.telemetry.linux_metrics import Fixed, Keyed, Metric, Section

# Devices beyond these are left out: a host of a thousand containers has a thousand interfaces.
DEVICES_LIMIT = 16
# Rendering /proc/interrupts costs milliseconds on large machines.
INTERRUPTS_CORES_LIMIT = 16


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
