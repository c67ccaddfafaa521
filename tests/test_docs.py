"""Documentation that fails the build when it lies."""

from __future__ import annotations

import doctest
import importlib
import json
import pkgutil
import re
import subprocess
from pathlib import Path

import click
import pytest

import prontosched
from prontosched.cli import COMMANDS, cli
from prontosched.gates.slurm import SlurmGate, SlurmWeights
from tests import make_results
from tests.make_cli_docs import PAGE, page

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "prontosched"
# Modules that need an extra, or start something, are imported by their own tests.
DOCTESTED = sorted(
    path.relative_to(SOURCE.parent).with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__")
    for path in SOURCE.rglob("*.py")
    if ">>> " in path.read_text()
)


def commands() -> list[tuple[str, click.Command]]:
    context = click.Context(cli)
    return [(name, cli.get_command(context, name)) for name in COMMANDS]  # type: ignore[misc]


@pytest.mark.parametrize("module", DOCTESTED)
def test_every_example_in_the_source_runs(module: str) -> None:
    result = doctest.testmod(importlib.import_module(module))

    assert result.attempted
    assert result.failed == 0


def test_the_command_line_page_shows_the_present_help() -> None:
    assert PAGE.read_text() == page(), "run `make docs`"


def test_every_command_has_a_module_and_every_module_of_one_is_listed() -> None:
    found = {
        module.name
        for module in pkgutil.iter_modules([str(SOURCE / "cli")])
        if hasattr(importlib.import_module(f"prontosched.cli.{module.name}"), "command")
    }

    assert {name.replace("-", "_") for name in COMMANDS} == found


def test_every_command_and_option_has_help() -> None:
    silent = []
    for name, command in commands():
        if not command.help:
            silent.append(name)
        for option in command.params:
            if isinstance(option, click.Option) and not option.help and not option.hidden:
                silent.append(f"{name} {option.opts[0]}")

    assert silent == []


def test_every_command_that_prints_a_result_takes_json() -> None:
    results = {
        "replay",
        "evaluate",
        "datasets",
        "forecast",
        "status",
        "check",
        "simulate",
        "explain",
        "report",
        "federation",
    }
    lacking = []
    for name, command in commands():
        if name in results and not isinstance(command, click.Group):
            names = {opt for p in command.params if isinstance(p, click.Option) for opt in p.opts}
            if "--json" not in names:
                lacking.append(name)

    assert lacking == []


def test_every_public_name_exists_and_is_documented() -> None:
    bare = [name for name in prontosched.__all__ if not getattr(prontosched, name).__doc__]

    assert bare == []


def test_every_word_of_the_glossarys_code_column_exists() -> None:
    names = {name for path in SOURCE.rglob("*.py") for name in re.findall(r"\w+", path.read_text())}
    missing = []
    for line in (ROOT / "docs" / "glossary.md").read_text().splitlines():
        cells = line.split("|")
        if len(cells) in (5, 6) and cells[1].strip() not in ("Word", "Noun", "---"):
            for word in re.findall(r"`([^`]+)`", cells[3]):
                wanted = word.removeprefix("--").split(".")[-1].split()[-1]
                if not set(wanted.split("-")) <= names:
                    missing.append(word)

    assert missing == []


def singular(word: str) -> str:
    if word.endswith("ies"):
        return f"{word[:-3]}y"
    if word.endswith("sses"):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith(("ss", "us", "is")) else word


def noun(name: str) -> str:
    """Return the noun that a name ends in: `SpikeDetector` is a detector, `decision_log` a log."""
    return singular(re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)[-1].lower())


def test_the_glossary_has_every_noun_that_names_a_class_or_a_module() -> None:
    page = (ROOT / "docs" / "glossary.md").read_text()
    rows = [line.split("|") for line in page.splitlines() if line.startswith("|")]
    known = {singular(word) for row in rows for word in re.findall(r"[a-z]+", row[1].lower())}
    known |= {noun(name) for row in rows for name in re.findall(r"`(?:[\w.]*\.)?(\w+)`", row[3])}
    products = set(re.findall(r"`(\w+)`", page.rpartition("\n\n")[2]))
    modules = {path.stem for path in SOURCE.rglob("*.py") if path.stem.strip("_") not in ("init", "main")}
    found = {noun(name): name for name in modules - products - {name.replace("-", "_") for name in COMMANDS}}
    for path in SOURCE.rglob("*.py"):
        for name in re.findall(r"(?m)^class ([A-Z]\w*)", path.read_text()):
            found[noun(name)] = name

    assert {name for word, name in found.items() if word not in known} == set(), (
        "give each noun a row in the glossary"
    )


def test_every_test_that_the_paper_page_names_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / "docs" / "paper.md").read_text())

    assert named
    for path, test in named:
        assert f"def {test}(" in (ROOT / path).read_text(), f"{path}::{test}"


def test_links_between_pages_lead_somewhere() -> None:
    broken = []
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", path.read_text()):
            if not target.startswith(("http", "mailto")) and not (path.parent / target).exists():
                broken.append(f"{path.relative_to(ROOT)}: {target}")

    assert broken == []


def test_every_number_in_the_evaluation_page_names_the_command_that_made_it() -> None:
    text = (ROOT / "docs" / "evaluation.md").read_text()
    for section in re.split(r"\n## ", text)[1:]:
        if re.search(r"\|\s*-?\d*\.\d+\s*\|", section):
            assert "pronto " in section, section.splitlines()[0]


def test_the_readme_names_the_two_commands() -> None:
    readme = (ROOT / "README.md").read_text()

    assert "make run" in readme
    assert "make test" in readme


def test_the_readmes_python_example_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)

    assert blocks
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})


def test_the_numbers_of_the_evaluation_page_are_those_of_its_runs() -> None:
    text = make_results.PAGE.read_text()

    assert make_results.fill(text, json.loads(make_results.NUMBERS.read_text())) == text
    assert set(re.findall(r"<!-- results: (\w+)-", text)) == set(make_results.STUDIES)


def test_every_optional_method_of_a_gate_that_the_page_names_is_one_of_a_gate() -> None:
    page = (ROOT / "docs" / "extending.md").read_text().split("These are optional:")[1].split("```")[0]
    named = re.findall(r"`(\w+)`", "".join(re.findall(r"^\|([^|]+)\|", page, re.MULTILINE)))

    assert named == ["prefer", "restore", "observe_all", "starved", "present", "missing"]
    assert all(hasattr(SlurmWeights, name) or hasattr(SlurmGate, name) for name in named)


def test_make_help_lists_every_target() -> None:
    listed = subprocess.run(
        ["make", "--no-print-directory", "help"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    makefile = (ROOT / "Makefile").read_text()
    targets = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)

    assert targets is not None
    assert set(targets[1].split()) == set(
        " ".join(line[5:23] for line in listed.splitlines()).replace("|", " ").split()
    )
