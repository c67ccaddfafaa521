from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from prontosched.cli import cli
from prontosched.cli.agent import command as agent_command
from prontosched.cli.up import command as up_command
from prontosched.errors import SettingsError
from prontosched.settings import AgentSettings, default_map, find_file, pairs, read_file, seconds

KNOWN = {
    "agent": {"budget": "budget", "log_days": "log_days", "source": "source", "for": "seconds"},
    "up": {"budget": "budget", "log_days": "log_days"},
    "run": {"timeout": "timeout"},
}


def test_the_file_gives_defaults_per_command(tmp_path):
    path = tmp_path / "pronto.toml"
    path.write_text('[agent]\nbudget = 0.05\nlog-days = 3\n[run]\ntimeout = "10m"\n')

    found = default_map(read_file(path), KNOWN)

    assert found["agent"] == {"budget": 0.05, "log_days": 3}
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
    ours = {"seconds", "verbose", "as_json"}

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
    assert "source must be one of" in str(shown.exception)
    refused = CliRunner().invoke(cli, ["--config", str(path), "agent"], env={"PRONTO_AGENT_BUDGET": "7"})
    assert refused.exit_code == 2
    assert "7" in refused.output


def test_the_settings_page_names_every_setting():
    page = (Path(__file__).parent.parent / "docs" / "settings.md").read_text()

    for name in AgentSettings.__dataclass_fields__:
        assert f"`{name.replace('_', '-')}`" in page, name


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
    words = re.search(r"(?m)^ExecStart=/usr/bin/env pronto (.+)$", unit)[1].split()

    assert CliRunner().invoke(cli, [*words, "--help"]).exit_code == 0
    assert "Type=notify" in unit
    assert "StateDirectory=pronto" in unit
