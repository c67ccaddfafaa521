"""Gates by name, ours and others'."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from prontosched.errors import IntegrationError, SettingsError
from prontosched.gates.hook import HookGate
from prontosched.gates.registry import gate_names, make_gate, present_gates
from prontosched.gates.slurm import SlurmGate

PACKAGE = """
class Gate:
    name = "toaster"
    def __init__(self, *, slots=2):
        self.slots = slots
"""


@pytest.fixture
def other_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package of someone else, installed by hand: metadata with entry points and a module."""
    (tmp_path / "toaster_gate.py").write_text(PACKAGE)
    info = tmp_path / "toaster_gate-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toaster-gate\nVersion: 1.0\n")
    points = "toaster = toaster_gate:Gate\nslurm = toaster_gate:Gate\nbroken = no_such_module:Gate\n"
    (info / "entry_points.txt").write_text(f"[prontosched.gates]\n{points}")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "toaster_gate", raising=False)


def test_gate_of_another_package_is_found_by_its_entry_point(other_package: None) -> None:
    gate = make_gate("toaster", slots=4)

    assert gate.name == "toaster"
    assert "toaster" in gate_names()


def test_other_package_cannot_take_over_a_name_of_ours(other_package: None) -> None:
    assert isinstance(make_gate("slurm"), SlurmGate)


def test_gate_whose_package_is_broken_is_an_error_that_names_it(other_package: None) -> None:
    with pytest.raises(IntegrationError, match="gate broken cannot be imported"):
        make_gate("broken")
    assert "broken" not in present_gates()


def test_unknown_gate_is_an_error_that_lists_the_known_ones() -> None:
    with pytest.raises(SettingsError, match="no gate is called 'slrum': did you mean 'slurm'"):
        make_gate("slrum")


def test_unknown_option_is_an_error_that_names_it() -> None:
    with pytest.raises(SettingsError, match="gate slurm has no option 'config': did you mean 'conf'"):
        make_gate("slurm", config="x")


def test_options_given_as_text_become_numbers_and_truth_values(tmp_path: Path) -> None:
    gate = make_gate("hook", command="/bin/true now", timeout="2.5", renew="true", folder=str(tmp_path))

    assert isinstance(gate, HookGate)
    assert (gate.timeout, gate.renew, gate.command) == (2.5, True, ["/bin/true", "now"])


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("timeout", "soon", "timeout must be a number, got 'soon'"),
        ("renew", "yes", "renew must be true or false"),
    ],
)
def test_option_of_the_wrong_kind_is_an_error_that_shows_it(option: str, value: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        make_gate("hook", command="/bin/true", **{option: value})


def test_command_called_true_is_a_command() -> None:
    assert make_gate("hook", command="true").command == ["true"]  # type: ignore[attr-defined]
