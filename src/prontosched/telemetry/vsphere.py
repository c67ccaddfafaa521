"""vSphere as a source: the hosts or virtual machines of a vCenter, each a node.

Needs pyVmomi (extra `vsphere`).
"""

from __future__ import annotations

import math
import os
import ssl
import stat
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from prontosched.errors import TelemetryError
from prontosched.extras import missing_extra
from prontosched.subspace import Array
from prontosched.telemetry.source import SEPARATION, Sample

USER_VARIABLE = "PRONTO_VSPHERE_USER"
PASSWORD_VARIABLE = "PRONTO_VSPHERE_PASSWORD"
FILE_VARIABLE = "PRONTO_VSPHERE_CREDENTIALS"
ENTITIES = ("vm", "host")
# Entities in one query: vCenter refuses answers that are too large.
QUERY_ENTITIES = 64
# Readings after which machines that came or went are looked for.
REFRESH_READINGS = 15
TIMEOUT_SECONDS = 15.0
NOTE = ("ready from cpu.ready.summation", SEPARATION["vsphere"])
INTERVAL_SECONDS = 20.0
READY = "cpu.ready.summation"
USAGE = "cpu.usage.average"
# The same waiting in other words: among the metrics they would give the answer away.
READY_ALIASES = (READY, "cpu.readiness.average")
# These only ever grow.
NOT_METRICS = (*READY_ALIASES, "sys.uptime.latest", "sys.osUptime.latest")
UNKNOWN = -1


def find_credentials(file: str | os.PathLike[str] | None = None) -> tuple[str, str]:
    """Return user and password from the file named, or the environment.

    The file has the user on its first line and the password on its second, and must be private. Without
    one, PRONTO_VSPHERE_CREDENTIALS names it, or PRONTO_VSPHERE_USER and PRONTO_VSPHERE_PASSWORD hold both.
    """
    named = file if file is not None else os.environ.get(FILE_VARIABLE)
    if named:
        path = Path(named)
        try:
            if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise TelemetryError(f"{path}: must be readable by its owner only: chmod 600 {path}")
            lines = path.read_text(encoding="utf-8").splitlines()
        except OSError as error:
            raise TelemetryError(f"{path}: cannot be read ({error.strerror})") from error
        if len(lines) < 2:
            raise TelemetryError(f"{path}: must hold a user and a password on two lines, got {len(lines)}")
        return lines[0].strip(), lines[1].strip()
    user, password = os.environ.get(USER_VARIABLE), os.environ.get(PASSWORD_VARIABLE)
    if not user or not password:
        raise TelemetryError(
            f"source vsphere needs a user and a password: set {USER_VARIABLE} and {PASSWORD_VARIABLE}, "
            f"or {FILE_VARIABLE} to a private file with both"
        )
    return user, password


class VSphereSource:
    """Read all hosts, or all virtual machines, of a vCenter or a single ESX host; each is a node.

    Parameters
    ----------
    target
        Name of the vCenter, with `:PORT` if not 443.
    entities
        `vm` or `host`.
    credentials_file
        File with user and password, see `find_credentials`.
    insecure
        Accept any certificate. Only for tests and isolated networks.
    certificates
        File with the certificates to trust, where the system's do not do.

    Attributes
    ----------
    trouble
        Why the last reading was empty or incomplete, empty if it was not.
    """

    name = "vsphere"
    interval_seconds = INTERVAL_SECONDS

    def __init__(
        self,
        target: str,
        *,
        entities: str = "vm",
        credentials_file: str | os.PathLike[str] | None = None,
        insecure: bool = False,
        certificates: str | None = None,
    ) -> None:
        if entities not in ENTITIES:
            raise TelemetryError(f"entities must be vm or host, got '{entities}'")
        self._host, _, port = target.removeprefix("https://").rstrip("/").partition(":")
        if not port.isdigit() and port:
            raise TelemetryError(f"a vCenter must be HOST or HOST:PORT, got '{target}'")
        self._port = int(port or 443)
        self._kind = entities
        self._credentials_file = credentials_file
        self._insecure = insecure
        self._certificates = certificates
        self.trouble = ""
        self._service: Any = None
        self._counters: dict[int, PerfCounter] = {}
        self._asked: list[PerfCounter] = []
        self._metrics: tuple[str, ...] = ()
        self._entities: list[Entity] = []
        self._readings = 0
        self._closed = False
        self._connect()

    def read(self) -> list[Sample]:
        """Read every entity that runs; the newest values that the vCenter has."""
        if self._closed:
            raise ValueError("read from a closed source")
        from pyVmomi import vmodl

        try:
            if self._service is None:
                self._connect()
            if self._readings % REFRESH_READINGS == 0:
                self._refresh()
            self._readings += 1
            samples: list[Sample] = []
            for start in range(0, len(self._entities), QUERY_ENTITIES):
                samples += self._query(self._entities[start : start + QUERY_ENTITIES])
        except (OSError, vmodl.MethodFault, TelemetryError) as error:
            # The session ended, or a machine is gone: log in and look again next time.
            self.trouble = _explain(error)
            self._disconnect()
            self._readings = 0
            return []
        self.trouble = ""
        return samples

    def unanswered(self) -> dict[str, str]:
        """Return why the vCenter gave nothing at the last reading; empty where it gave something."""
        return {self._host: self.trouble} if self.trouble else {}

    def close(self) -> None:
        """Log out."""
        self._closed = True
        self._disconnect()

    def _connect(self) -> None:
        try:
            from pyVim.connect import SmartConnect
            from pyVmomi import vim, vmodl
        except ImportError as error:
            raise TelemetryError(missing_extra("source vsphere", "vsphere")) from error
        user, password = find_credentials(self._credentials_file)
        context = ssl.create_default_context(cafile=self._certificates)
        if self._insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        try:
            self._service = SmartConnect(
                host=self._host,
                port=self._port,
                user=user,
                pwd=password,
                sslContext=context,
                httpConnectionTimeout=TIMEOUT_SECONDS,
            )
        except vim.fault.InvalidLogin as error:
            raise TelemetryError(f"{self._host}: refused user '{user}': check the password") from error
        except (OSError, vmodl.MethodFault) as error:
            raise TelemetryError(
                f"{self._host}:{self._port}: cannot be reached ({_explain(error)})"
            ) from error
        manager = self._service.RetrieveContent().perfManager
        self._counters = {
            counter.key: PerfCounter(
                f"{counter.groupInfo.key}.{counter.nameInfo.key}.{counter.rollupType}",
                str(counter.unitInfo.key),
            )
            for counter in manager.perfCounter
        }

    def _disconnect(self) -> None:
        service, self._service = self._service, None
        if service is None:
            return
        from pyVim.connect import Disconnect
        from pyVmomi import vmodl

        try:
            Disconnect(service)
        except (OSError, vmodl.MethodFault) as error:
            self.trouble = self.trouble or _explain(error)
        finally:
            service._stub.DropConnections()

    def _refresh(self) -> None:
        """Look which entities there are, and which counters they have."""
        from pyVmomi import vim

        content = self._service.RetrieveContent()
        kind = vim.VirtualMachine if self._kind == "vm" else vim.HostSystem
        size = "summary.config.numCpu" if self._kind == "vm" else "summary.hardware.numCpuThreads"
        view = content.viewManager.CreateContainerView(content.rootFolder, [kind], True)
        try:
            found = list(view.view)
        finally:
            view.Destroy()
        entities = [
            Entity(facts["name"], place, int(facts.get(size) or 1))
            for place, facts in _properties(content, kind, found, ["name", size])
        ]
        # Machines in different folders may have one name: their identity tells them apart.
        count = Counter(entity.name for entity in entities)
        self._entities = [
            one._replace(name=f"{one.name} ({one.place._moId})") if count[one.name] > 1 else one
            for one in entities
        ]
        if not self._entities:
            return
        available = content.perfManager.QueryAvailablePerfMetric(
            entity=self._entities[0].place, intervalId=int(INTERVAL_SECONDS)
        )
        whole = {metric.counterId for metric in available if metric.instance == ""}
        asked = sorted({self._counters[key] for key in whole & self._counters.keys()})
        if asked != self._asked:
            self._asked = asked
            self._metrics = metric_names(asked)

    def _query(self, entities: Sequence[Entity]) -> Iterator[Sample]:
        from pyVmomi import vim

        identifiers = {counter: key for key, counter in self._counters.items()}
        metrics = [
            vim.PerformanceManager.MetricId(counterId=identifiers[c], instance="") for c in self._asked
        ]
        specs = [
            vim.PerformanceManager.QuerySpec(
                entity=entity.place,
                metricId=metrics,
                intervalId=int(INTERVAL_SECONDS),
                maxSample=1,  # the newest: older ones were read before
            )
            for entity in entities
        ]
        manager = self._service.RetrieveContent().perfManager
        # By identity, for answers leave out machines that are switched off.
        answers = {answer.entity._moId: answer for answer in manager.QueryPerf(querySpec=specs)}
        for entity in entities:
            answer = answers.get(entity.place._moId)
            if answer is None or not answer.sampleInfo:
                continue
            times = [info.timestamp.timestamp() for info in answer.sampleInfo]
            values = {
                self._counters[series.id.counterId].name: newest(times, series.value)
                for series in answer.value
            }
            got = to_values(self._asked, values, cpus=entity.cpus)
            yield Sample(entity.name, self._metrics, got.vector, max(times), got.ready, got.utilisation, NOTE)


def _explain(error: BaseException) -> str:
    message = getattr(error, "msg", None) or getattr(error, "strerror", None) or str(error)
    return str(message).splitlines()[0] if message else type(error).__name__


class PerfCounter(NamedTuple):
    """A counter's name, as group.name.rollup, and its unit in vSphere's words."""

    name: str
    unit: str


def metric_names(counters: Sequence[PerfCounter]) -> tuple[str, ...]:
    """Return the names of the metrics: all counters but uptimes and those that say CPU Ready."""
    return tuple(counter.name for counter in counters if counter.name not in NOT_METRICS)


def in_units(value: float, unit: str) -> float:
    """Return a value in its unit: vSphere counts percent in hundredths, and -1 means unknown."""
    if value == UNKNOWN:
        return math.nan
    return value / 100.0 if unit == "percent" else float(value)


def ready_percent(milliseconds: float, *, cpus: int) -> float:
    """Return CPU Ready in percent of the interval and per vCPU.

    Examples
    --------
    >>> ready_percent(2000, cpus=2)
    5.0
    """
    if milliseconds < 0 or cpus < 1:
        return math.nan
    return 100.0 * milliseconds / (1000.0 * INTERVAL_SECONDS) / cpus


class EntityValues(NamedTuple):
    """One entity at one moment: metrics, CPU Ready and utilisation in percent."""

    vector: Array
    ready: float
    utilisation: float


def to_values(counters: Sequence[PerfCounter], values: Mapping[str, float], *, cpus: int) -> EntityValues:
    """Turn what vSphere says of an entity, by counter, into metrics; counters that are missing are unknown.

    `cpus` are the vCPUs of a virtual machine, or the logical CPUs of a host.
    """
    known = [counter for counter in counters if counter.name not in NOT_METRICS]
    vector = np.array([in_units(values.get(counter.name, UNKNOWN), counter.unit) for counter in known])
    ready = ready_percent(values.get(READY, UNKNOWN), cpus=cpus)
    return EntityValues(vector, ready, in_units(values.get(USAGE, UNKNOWN), "percent"))


def newest(times: Sequence[float], values: Sequence[float]) -> float:
    """Return the value of the latest time, in whatever order they came.

    Unknown if there are not as many values as times: which belongs to which cannot be told then.

    Examples
    --------
    >>> newest([40.0, 20.0, 60.0], [4, 2, 6])
    6
    """
    if not times or len(times) != len(values):
        return UNKNOWN
    return values[max(range(len(times)), key=times.__getitem__)]


class Entity(NamedTuple):
    """A machine of the vCenter: its name, its handle and its CPUs."""

    name: str
    place: Any
    cpus: int


def _properties(
    content: Any, kind: Any, found: list[Any], paths: list[str]
) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yield the properties of many objects in few round trips."""
    from pyVmomi import vmodl

    collector = vmodl.query.PropertyCollector
    if not found:
        return
    spec = collector.FilterSpec(
        objectSet=[collector.ObjectSpec(obj=place) for place in found],
        propSet=[collector.PropertySpec(type=kind, pathSet=paths, all=False)],
    )
    answer = content.propertyCollector.RetrievePropertiesEx([spec], collector.RetrieveOptions())
    while answer is not None:
        for item in answer.objects:
            yield item.obj, {prop.name: prop.val for prop in item.propSet}
        if not answer.token:
            return
        answer = content.propertyCollector.ContinueRetrievePropertiesEx(answer.token)
