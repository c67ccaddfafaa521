from __future__ import annotations

import inspect
import json
import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from prontosched.agent.config import signal_options
from prontosched.cli import cli
from prontosched.cli.agent import command as agent_command
from prontosched.cli.options import Duration
from prontosched.cli.up import command as up_command
from prontosched.errors import ProntoError, SettingsError
from prontosched.settings import (
    SIGNAL_SETTINGS,
    AgentSettings,
    default_map,
    find_file,
    pairs,
    read_file,
    seconds,
    unknown_variables,
    with_durations,
)
from prontosched.signals import find_signal

KNOWN = {
    "agent": {"budget": "budget", "log_age": "log_age", "source": "source", "for": "seconds"},
    "up": {"budget": "budget", "log_age": "log_age"},
    "run": {"timeout": "timeout"},
}


def test_the_file_gives_defaults_per_command(tmp_path):
    path = tmp_path / "pronto.toml"
    path.write_text('[agent]\nbudget = 0.05\nlog-age = 3\n[run]\ntimeout = "10m"\n')

    found = default_map(read_file(path), KNOWN)

    assert found["agent"] == {"budget": 0.05, "log_age": 3}
    assert found["run"] == {"timeout": "10m"}


def test_what_holds_for_the_agent_holds_for_up_unless_up_says_otherwise():
    found = default_map({"agent": {"budget": 0.05, "source": "trace"}, "up": {"budget": 0.2}}, KNOWN)

    assert found["up"] == {"budget": 0.2}
    assert found["agent"] == {"budget": 0.05, "source": "trace"}


def test_a_key_is_the_option_s_own_word():
    assert default_map({"agent": {"for": "60s"}}, KNOWN)["agent"] == {"seconds": "60s"}


def test_an_unknown_key_is_an_error_that_names_the_nearest():
    with pytest.raises(SettingsError, match=r"\[agent\] has no setting 'bugdet': did you mean 'budget'\?"):
        default_map({"agent": {"bugdet": 1}}, KNOWN)


def test_an_unknown_table_is_an_error_that_names_the_nearest():
    with pytest.raises(SettingsError, match=r"no command for table \[agnet\]: did you mean 'agent'\?"):
        default_map({"agnet": {}}, KNOWN)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("budget = 1\n", "must stand in a table"),
        ("[agent]\nbudget = \n", "must be TOML"),
        ("[agent.deep]\nx = 1\n", "must be a plain value"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused(tmp_path, text, words):
    path = tmp_path / "pronto.toml"
    path.write_text(text)
    with pytest.raises(SettingsError, match=words):
        read_file(path)


def test_a_file_that_is_not_there_is_an_error_a_user_can_act_on(tmp_path):
    with pytest.raises(SettingsError, match="must be readable, got No such file"):
        read_file(tmp_path / "none.toml")


def test_the_user_s_file_comes_before_the_machine_s(tmp_path):
    (tmp_path / "pronto").mkdir()
    (tmp_path / "pronto" / "pronto.toml").write_text("")

    assert find_file({"XDG_CONFIG_HOME": str(tmp_path)}) == tmp_path / "pronto" / "pronto.toml"


@pytest.mark.parametrize(
    ("text", "expected"),
    [("90", 90), ("60s", 60), ("10m", 600), ("1h30m", 5400), ("2d", 172800), ("0.5s", 0.5)],
)
def test_lengths_of_time_are_read(text, expected):
    assert seconds(text) == expected


@pytest.mark.parametrize("text", ["", "soon", "10x", "-5s", "1m1h"])
def test_what_is_no_length_of_time_is_refused(text):
    with pytest.raises(SettingsError, match="must look like 90s, 10m or 1h30m"):
        seconds(text)


def test_pairs_need_a_key_and_a_sign():
    assert pairs(["a-b=c=d"], "--x") == {"a_b": "c=d"}
    with pytest.raises(SettingsError, match="--x must be KEY=VALUE, got 'abc'"):
        pairs(["abc"], "--x")


@pytest.mark.parametrize("command", [agent_command, up_command])
def test_every_setting_is_an_option_of_the_same_name_and_default(command):
    options = {param.name: param for param in command.params}
    ours = {"seconds", "verbose", "log_format", "as_json"}

    assert set(options) - ours == set(AgentSettings.__dataclass_fields__)
    made = command.make_context("test", [], resilient_parsing=False).params
    assert (
        AgentSettings(**{name: value for name, value in made.items() if name not in ours}) == AgentSettings()
    )


def test_command_line_beats_environment_beats_file(tmp_path):
    path = tmp_path / "pronto.toml"
    path.write_text("[status]\njsn = true\n")
    wrong = CliRunner().invoke(cli, ["--config", str(path), "status"])
    assert "[status] has no setting 'jsn': did you mean 'json'?" in str(wrong.exception)
    path.write_text('[run]\ncpus = 3.0\n[agent]\nlisten = "127.0.0.1:1"\nbudget = 0.2\n')
    shown = CliRunner().invoke(
        cli,
        ["--config", str(path), "agent", "--budget", "0.3", "--source", "nowhere"],
        env={"PRONTO_AGENT_BUDGET": "7", "HOME": str(tmp_path)},
    )

    # A budget of 7 from the environment would have been refused: the command line came first.
    assert isinstance(shown.exception, SettingsError)
    assert "no source is called" in str(shown.exception)
    refused = CliRunner().invoke(cli, ["--config", str(path), "agent"], env={"PRONTO_AGENT_BUDGET": "7"})
    assert "budget must lie between 0 and 1, got 7.0" in str(refused.exception)


def _settings_page():
    """Return name and default of every row under `[agent]` and `[up]`."""
    page = (Path(__file__).parent.parent / "docs" / "settings.md").read_text()
    table = page.partition("## `[agent]` and `[up]`")[2].partition("## ")[0]
    rows = [re.match(r"\| `([a-z-]+)` \| ([^|]+) \|", line) for line in table.splitlines()]
    return {row[1]: row[2].strip("` ") for row in rows if row}


@pytest.mark.parametrize("command", [agent_command, up_command])
def test_the_settings_page_has_every_option_of_the_agent_and_no_other(command):
    options = {param.opts[0].removeprefix("--") for param in command.params if param.opts[0] != "--json"}

    assert set(_settings_page()) == options


def test_the_settings_page_shows_the_defaults_that_hold():
    page, wrong = _settings_page(), []
    for option in agent_command.params:
        name = option.opts[0].removeprefix("--")
        expected = str(option.default).lower() if isinstance(option.default, bool) else option.default_text()
        if expected is not None and page[name] != expected:
            wrong.append((name, page[name], expected))

    assert wrong == []


def test_every_setting_of_the_learned_signal_can_be_set():
    # `enforcing` follows from --enforce; the seed only picks which refusals are lifted.
    parameters = set(inspect.signature(find_signal("learned").one).parameters) - {"enforcing", "seed"}

    assert parameters <= set(SIGNAL_SETTINGS) <= set(AgentSettings.__dataclass_fields__)


def test_every_setting_in_the_signal_s_documentation_can_be_set():
    page = (Path(__file__).parent.parent / "docs" / "signal.md").read_text()
    table = page.partition("## What each setting does")[2].partition("## ")[0]
    named = re.findall(r"(?m)^\| `(\w+)` \|", table)

    assert len(named) >= 8
    assert set(named) <= set(SIGNAL_SETTINGS)


@pytest.mark.parametrize("name", ["hourly_limit", "likelihood", "hold", "explore"])
def test_a_setting_of_the_signal_reaches_it_from_all_three_places(tmp_path, name):
    value = {"hold": 4}.get(name, 0.25)
    option = name.replace("_", "-")
    path = tmp_path / "pronto.toml"
    path.write_text(f"[agent]\n{option} = {value}\n")
    known = signal_options(AgentSettings(**{name: value}))
    command = [
        "agent",
        "--source",
        "generated",
        "--no-keep",
        "--listen",
        "127.0.0.1:0",
        "--for",
        "0.1s",
        "--json",
    ]
    ways = (
        (command, {f"PRONTO_AGENT_{name.upper()}": str(value)}),
        ([*command, f"--{option}", str(value)], {}),
        (["--config", str(path), *command], {}),
    )

    assert known == {name: value}
    for arguments, environment in ways:
        found = CliRunner().invoke(cli, arguments, env={"HOME": str(tmp_path), **environment})
        assert found.exit_code == 0, found.output
        assert json.loads(found.stdout)["signal"]["settings"][name] == value


def test_the_json_of_a_result_is_one_object(tmp_path):
    found = CliRunner().invoke(
        cli,
        ["agent", "--source", "generated", "--no-keep", "--listen", "127.0.0.1:0", "--for", "0.2s", "--json"],
        env={"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)},
    )

    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout)["source"] == "generated"


def _known():
    import click

    from prontosched.cli import _options

    with click.Context(cli) as ctx:
        return _options(ctx, {"agent", "run", "up", "status"})


@pytest.mark.parametrize("origin", ["docs/settings.md", "deploy/systemd/pronto.toml"])
def test_every_example_of_a_settings_file_is_accepted(tmp_path, origin):
    text = (Path(__file__).parent.parent / origin).read_text()
    if origin.endswith(".md"):
        text = text.partition("```toml\n")[2].partition("```")[0]
    else:
        text = re.sub(r"(?m)^# (?=\w+ = )", "", text)
    path = tmp_path / "pronto.toml"
    path.write_text(text)

    found = default_map(read_file(path), _known())

    assert set(found["agent"]) >= {"budget", "gate", "enforce", "nats"}


def test_the_unit_for_systemd_starts_a_command_that_exists():
    unit = (Path(__file__).parent.parent / "deploy" / "systemd" / "pronto-agent.service").read_text()
    words = re.search(r"(?m)^ExecStart=/opt/pronto/bin/pronto (.+)$", unit)[1].split()

    assert CliRunner().invoke(cli, [*words, "--help"]).exit_code == 0
    assert "Type=notify" in unit
    assert "StateDirectory=pronto" in unit


AGENT = {"PRONTO_AGENT_BUDGET", "PRONTO_AGENT_GATE"}


@pytest.mark.parametrize(
    ("variable", "words"),
    [
        ("PRONTO_AGENT_BUDGTE", "did you mean 'PRONTO_AGENT_BUDGET'"),
        ("PRONTO_AGNET_BUDGET", "did you mean 'PRONTO_AGENT_"),
        ("PRONTO_KUBERNETES_URLL", "did you mean 'PRONTO_KUBERNETES_URL'"),
    ],
)
def test_a_variable_that_nearly_is_a_setting_is_refused(variable, words):
    with pytest.raises(SettingsError, match=f"{variable} sets nothing: {words}"):
        unknown_variables(AGENT, {"AGENT"}, {"AGENT", "RUN"}, {variable: "1"})


def test_a_variable_like_no_setting_is_reported():
    found = unknown_variables(AGENT, {"AGENT"}, {"AGENT", "RUN"}, {"PRONTO_FOO": "1"})

    assert len(found) == 1
    assert "PRONTO_FOO sets nothing" in found[0]


@pytest.mark.parametrize(
    "variable",
    [
        "PRONTO_AGENT_BUDGET",
        "PRONTO_RUN_ANYTHING",  # for `run` to check
        "PRONTO_PROMETHEUS_TOKEN",
        "PRONTO_REASON",  # a hook's command may call pronto
        "PRONTO_TEST_DATA",
        "PRONTO_SERVICE_HOST",  # Kubernetes, of a service called `pronto`
        "PRONTO_AGENT_PORT_7077_TCP_ADDR",
        "PRONTO_AGENT_SERVICE_PORT_HTTP",
        "HOME",
    ],
)
def test_a_variable_that_means_something_is_left_alone(variable):
    assert unknown_variables(AGENT, {"AGENT"}, {"AGENT", "RUN"}, {variable: "1"}) == []


@pytest.mark.parametrize("command", ["agent", "up"])
def test_a_variable_of_the_agent_holds_for_up_too(tmp_path, command):
    line = [command, "--source", "generated", "--no-keep", "--listen", "127.0.0.1:0", "--json"]
    # Named after the option's own word, as in the file and on the command line.
    environment = {"HOME": str(tmp_path), "PRONTO_AGENT_FOR": "0.1s", "PRONTO_AGENT_CAPACITY_FACTOR": "2.5"}
    found = CliRunner().invoke(cli, line, env=environment)

    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout)["capacity_factor"] == 2.5


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--budget", "0"], "budget must lie between 0 and 1, got 0.0"),
        (["--budget", "1"], "budget must lie between 0 and 1, got 1.0"),
        (["--tolerance", "lots"], "tolerance must be like 5%"),
        (["--signal", "paper", "--budget", "0.1"], "signal paper has no budget"),
        (["--preset", "papre"], "no preset is called 'papre': did you mean 'paper'"),
        (["--signal", "learnd"], "no signal is called 'learnd': did you mean 'learned'"),
        (["--source", "generatd"], "no source is called 'generatd': did you mean 'generated'"),
        (
            ["--source", "linux", "--source-option", "thread=false"],
            "no option 'thread': did you mean 'threads'",
        ),
        (["--source", "linux", "--source-option", "interval_seconds=2"], "the agent has an option for it"),
        (["--source-option", "x=1"], "source generated has no options, got 'x=1'"),
        (["--gate", "slrum"], "no gate is called 'slrum': did you mean 'slurm'"),
        (
            ["--gate", "hook", "--gate-option", "comand=/bin/true"],
            "no option 'comand': did you mean 'command'",
        ),
        (["--gate", "hook"], "gate hook needs the option command: give command=VALUE"),
        (
            ["--gate", "hook", "--gate-option", "command=/bin/true", "--gate-option", "min_hold_second=3"],
            "no option 'min_hold_second': did you mean 'min_hold_seconds'",
        ),
        (
            ["--gate", "hook", "--gate-option", "command=/no/such"],
            "its command must be a program, got '/no/such'",
        ),
    ],
)
def test_settings_that_cannot_work_are_refused_before_anything_starts(tmp_path, arguments, words):
    folder = tmp_path / "state"
    command = [
        "agent",
        "--source",
        "generated",
        "--state",
        str(folder),
        "--listen",
        "127.0.0.1:0",
        "--for",
        "1s",
    ]
    found = CliRunner().invoke(cli, [*command, *arguments], env={"HOME": str(tmp_path)})

    assert isinstance(found.exception, ProntoError)
    assert words in str(found.exception)
    assert "\n" not in str(found.exception)
    assert not folder.exists()


def test_a_gate_whose_engine_is_not_here_is_refused_before_anything_starts(tmp_path):
    command = ["agent", "--source", "generated", "--no-keep", "--listen", "127.0.0.1:0", "--for", "1s"]
    for gate, words in (("slurm", "scontrol must be on PATH"), ("htcondor", "condor_startd must be on PATH")):
        found = CliRunner().invoke(
            cli, [*command, "--gate", gate], env={"HOME": str(tmp_path), "PATH": str(tmp_path)}
        )
        assert f"gate {gate}: {words}" in str(found.exception)


@pytest.mark.parametrize("option", ["--interval", "--valid", "--log-age"])
def test_a_time_of_zero_is_refused_in_words(option):
    found = CliRunner().invoke(cli, ["agent", option, "0"])

    assert found.exit_code == 2
    assert f"Invalid value for '{option}': a length of time must be" in found.output


@pytest.mark.parametrize("value", [True, float("inf"), float("nan"), -1, "-1s"])
def test_what_is_no_length_of_time_is_refused_from_a_file_too(value):
    with pytest.raises(click.BadParameter, match="a length of time must"):
        Duration().convert(value, None, None)


def test_gate_options_that_are_times_are_spelled_as_everywhere():
    assert with_durations({"min_hold_seconds": "1m", "timeout": "2s"}) == {
        "min_hold_seconds": "60",
        "timeout": "2",
    }
