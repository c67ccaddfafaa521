"""vSphere: recorded counters, and the vCenter simulator over its real API."""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from prontosched.errors import TelemetryError
from prontosched.telemetry.source import SEPARATION
from prontosched.telemetry.vsphere import (
    PerfCounter,
    VSphereSource,
    find_credentials,
    metric_names,
    newest,
    ready_percent,
    to_values,
)
from tests.processes import free_port
from tests.telemetry.vcenter import NEEDS_VCSIM, VCenter, find_vcsim

pytest.importorskip("pyVmomi", reason="pyVmomi is not installed")


def recorded(folder: Path, flavour: str, entity: str) -> tuple[list[PerfCounter], list[dict[str, float]]]:
    pq = pytest.importorskip("pyarrow.parquet")
    path = folder / "data" / "vmware_govmomi" / "counters_long.parquet"
    table = pq.read_table(path, filters=[("flavour", "=", flavour), ("entity", "=", entity)]).to_pylist()
    counters = sorted({PerfCounter(row["counter"], row["unit"]) for row in table})
    samples: list[dict[str, float]] = [{} for _ in range(100)]
    for row in table:
        samples[row["sample"]][row["counter"]] = row["value"]
    return counters, samples


def test_recorded_counters_of_a_virtual_machine_become_percent_per_vcpu(shared_data: Path) -> None:
    counters, samples = recorded(shared_data, "vpx", "Vm")

    values = [to_values(counters, sample, cpus=2) for sample in samples]

    assert len(counters) == 89
    assert all(v.vector.shape == (len(metric_names(counters)),) for v in values)
    assert values[0].ready == pytest.approx(100 * 137 / 20_000 / 2)
    ready = [v.ready for v in values]
    assert (min(ready), max(ready)) == pytest.approx((100 * 88 / 20_000 / 2, 100 * 271 / 20_000 / 2))


def test_recorded_ready_of_a_host_agrees_with_its_readiness(shared_data: Path) -> None:
    """vSphere gives the same waiting a second time as readiness: both must move together."""
    _, samples = recorded(shared_data, "esx", "Vm")
    ready = [ready_percent(sample["cpu.ready.summation"], cpus=1) for sample in samples]
    readiness = [sample["cpu.readiness.average"] / 100 for sample in samples]

    assert np.corrcoef(ready, readiness)[0, 1] > 0.9


def test_utilisation_comes_in_whole_percent(shared_data: Path) -> None:
    counters, samples = recorded(shared_data, "vpx", "Host")

    values = to_values(counters, samples[0], cpus=16)

    assert values.utilisation == samples[0]["cpu.usage.average"] / 100
    assert 0.0 < values.utilisation < 100.0


def test_neither_ready_nor_uptime_is_a_metric() -> None:
    counters = [
        PerfCounter(name, "millisecond")
        for name in (
            "cpu.ready.summation",
            "cpu.readiness.average",
            "sys.uptime.latest",
            "cpu.idle.summation",
        )
    ]

    assert metric_names(counters) == ("cpu.idle.summation",)


def test_minus_one_is_unknown() -> None:
    values = to_values([PerfCounter("a.b.c", "number")], {"a.b.c": -1, "cpu.ready.summation": -1}, cpus=1)

    assert np.isnan(values.vector).all()
    assert math.isnan(values.ready)


def test_the_newest_value_counts_in_whatever_order_they_come() -> None:
    assert newest([60.0, 40.0, 20.0], [6, 4, 2]) == newest([20.0, 60.0, 40.0], [2, 6, 4]) == 6


def test_values_that_do_not_match_their_times_are_unknown() -> None:
    assert newest([60.0, 40.0], [6]) == -1


class TestCredentials:
    def test_come_from_the_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PRONTO_VSPHERE_USER", "me")
        monkeypatch.setenv("PRONTO_VSPHERE_PASSWORD", "pw")

        assert find_credentials() == ("me", "pw")

    def test_come_from_a_private_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = tmp_path / "secret"
        path.write_text("me\npw\n")
        path.chmod(0o600)
        monkeypatch.setenv("PRONTO_VSPHERE_CREDENTIALS", str(path))

        assert find_credentials() == ("me", "pw")

    def test_a_file_that_others_can_read_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "secret"
        path.write_text("me\npw\n")
        path.chmod(0o644)

        with pytest.raises(TelemetryError, match="readable by its owner only: chmod 600"):
            find_credentials(path)

    def test_a_file_without_a_password_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "secret"
        path.write_text("me\n")
        path.chmod(0o600)

        with pytest.raises(TelemetryError, match="on two lines, got 1"):
            find_credentials(path)

    def test_without_any_it_says_where_to_put_them(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("USER", "PASSWORD", "CREDENTIALS"):
            monkeypatch.delenv(f"PRONTO_VSPHERE_{name}", raising=False)

        with pytest.raises(TelemetryError, match="set PRONTO_VSPHERE_USER and PRONTO_VSPHERE_PASSWORD"):
            find_credentials()


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRONTO_VSPHERE_USER", "tester")
    monkeypatch.setenv("PRONTO_VSPHERE_PASSWORD", "secret")


@pytest.fixture(scope="module")
def vcenter() -> Iterator[VCenter]:
    program = find_vcsim()
    assert program is not None
    running = VCenter(program)
    yield running
    running.close()


@NEEDS_VCSIM
@pytest.mark.usefixtures("known")
@pytest.mark.parametrize(("entities", "count", "least"), [("vm", 2, 80), ("host", 2, 90)])
def test_every_machine_of_the_simulator_is_a_node(
    vcenter: VCenter, entities: str, count: int, least: int
) -> None:
    source = VSphereSource(vcenter.address, entities=entities, insecure=True)
    try:
        first, second = source.read(), source.read()
    finally:
        source.close()

    assert len({sample.node for sample in first}) == count
    assert len(first[0].metrics) >= least
    assert all(sample.metrics is first[0].metrics for sample in first + second)
    assert all(0.0 < sample.ready < 1000.0 and 0.0 < sample.utilisation < 100.0 for sample in first)
    assert all(sample.timestamp > 1e9 for sample in first)
    assert first[0].notes == ("ready from cpu.ready.summation", SEPARATION["vsphere"])


@NEEDS_VCSIM
@pytest.mark.usefixtures("known")
def test_a_certificate_nobody_vouches_for_is_refused(vcenter: VCenter) -> None:
    with pytest.raises(TelemetryError, match=r"cannot be reached \(.*CERTIFICATE_VERIFY_FAILED"):
        VSphereSource(vcenter.address)


@NEEDS_VCSIM
@pytest.mark.usefixtures("known")
def test_a_wrong_password_is_one_line(vcenter: VCenter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRONTO_VSPHERE_PASSWORD", "wrong")

    with pytest.raises(TelemetryError, match="refused user 'tester': check the password") as caught:
        VSphereSource(vcenter.address, insecure=True)
    assert "wrong" not in str(caught.value)


@NEEDS_VCSIM
@pytest.mark.usefixtures("known")
@pytest.mark.filterwarnings("ignore:.*SSLSocket:pytest.PytestUnraisableExceptionWarning")
def test_a_vcenter_that_goes_and_comes_back_is_read_again() -> None:
    """pyVmomi leaves the socket of a call that failed to the garbage collector, which warns."""
    program = find_vcsim()
    assert program is not None
    first = VCenter(program)
    source = VSphereSource(first.address, insecure=True)
    assert len(source.read()) == 2
    first.close()

    gone, why = source.read(), source.unanswered()
    second = VCenter(program, first.address)
    back = source.read()
    source.close()
    second.close()
    gc.collect()

    assert gone == []
    assert list(why) == ["127.0.0.1"]
    assert len(back) == 2


@pytest.mark.usefixtures("known")
def test_an_address_where_nothing_listens_is_one_line() -> None:
    with pytest.raises(TelemetryError, match="cannot be reached"):
        VSphereSource(f"127.0.0.1:{free_port()}")


@pytest.mark.parametrize(
    ("target", "entities", "message"),
    [("host:x", "vm", "must be HOST or HOST:PORT, got 'host:x'"), ("host", "rack", "vm or host, got 'rack'")],
)
def test_what_makes_no_sense_is_refused(target: str, entities: str, message: str) -> None:
    with pytest.raises(TelemetryError, match=message):
        VSphereSource(target, entities=entities)
