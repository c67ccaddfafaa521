"""The report: one file that needs nothing else, with every figure and number of the study."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner

from prontosched.cli.evaluate import command
from prontosched.evaluation.evaluate import evaluate
from prontosched.evaluation.generators import plan_control
from prontosched.evaluation.inputs import Setting, first_rows
from prontosched.evaluation.report import draw
from tests.requirements import require_program

METHODS = "learned,paper,paper-spirit,paper-fd,paper-pm,ready,random,clock,accept"
PAPER_FIGURES = (
    "cdf-left-sided", "cdf-right-sided", "cdf-downtime", "cdf-contained-spikes", "projections", "rejection", "window",
    "sweep-rank",
)  # fmt: skip
HONEST_FIGURES = ("recall-downtime", "against-ready", "against-null", "lead-time", "reliability")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("out") / "report.html"
    arguments = [
        "--control",
        "positive",
        "--nodes",
        "2",
        "--steps",
        "600",
        "--methods",
        METHODS,
        "--workers",
        "1",
    ]
    result = CliRunner().invoke(command, [*arguments, "--sweep", "rank=2,4", "--report", str(path)])
    assert result.exit_code == 0, result.output
    return path


class Outline(HTMLParser):
    """Collects tags, ids and addresses."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "br", "link", "img", "use", "path", "rect", "defs"):
            self.open.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in ("src", "href", "xlink:href"):
                self.addresses.append(value or "")


def test_the_page_needs_nothing_from_elsewhere(report: Path) -> None:
    outline = Outline()
    outline.feed(report.read_text())

    assert all(address.startswith("#") for address in outline.addresses)
    assert not re.search(r"@import|url\((?!#)", report.read_text())


def test_ids_of_figures_on_one_page_do_not_clash(report: Path) -> None:
    outline = Outline()
    outline.feed(report.read_text())

    assert len(outline.ids) == len(set(outline.ids))


@pytest.mark.parametrize("name", [*PAPER_FIGURES, *HONEST_FIGURES])
def test_every_figure_is_on_the_page_and_beside_it(report: Path, name: str) -> None:
    folder = report.with_name("report_files")

    assert (folder / f"{name}.svg").read_text().startswith("<?xml")
    assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert f'id="{name}-' in report.read_text()


def test_the_page_states_verdict_command_settings_and_data(report: Path) -> None:
    page = report.read_text()
    numbers = json.loads((report.parent / "report_files" / "results.json").read_text())

    assert numbers["answer"]["because"][1:] in page
    assert "pronto" in numbers["command"]
    assert "The data, and how this was run" in page
    assert "100 clusters, about 30,000 VMs" in page
    assert "Time and memory per vector" in page
    assert "Goals of the default signal and policy" in page


def test_numbers_on_the_page_are_those_of_the_json(report: Path) -> None:
    numbers = json.loads((report.parent / "report_files" / "results.json").read_text())
    recall = next(m for m in numbers["methods"] if m["name"] == "learned")["honest"]["recall"]["value"]

    assert f'<span class="value">{recall:.2f}'.replace("0.", ".") in report.read_text().replace("▲ ", "")


def test_a_control_is_not_called_a_development_result(report: Path) -> None:
    assert "development results" not in report.read_text()


def test_the_performance_table_has_every_embedding_of_the_paper(report: Path) -> None:
    table = json.loads((report.parent / "report_files" / "results.json").read_text())["performance"]["table"]

    assert {row["embedding"] for row in table} == {"fpca", "power-method", "frequent-directions", "spirit"}
    assert all(0 < row["microseconds_per_vector"] < 1e6 and row["kilobytes"] > 1 for row in table)


def test_a_report_where_nothing_can_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    arguments = [
        "--control",
        "negative",
        "--nodes",
        "1",
        "--steps",
        "150",
        "--methods",
        "ready",
        "--workers",
        "1",
    ]

    result = CliRunner().invoke(command, [*arguments, "--report", str(tmp_path / "file" / "report.html")])

    assert result.exit_code == 1
    assert "choose another place" in str(result.exception)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--methods", "magic"], "method must be one of learned"),
        (["--methods", ","], "at least one method"),
        (["--sweep", "colour=1"], "a sweep must be over rank"),
        (["--sweep", "rank=two"], "must give numbers"),
        (["--sweep", "rank=0"], "rank must be above 0"),
        (["--truth", "often"], "a spike must be defined as"),
        (["--control", "positive", "a.csv"], "leave out the traces"),
        (["--scheduler", "tcp://127.0.0.1:1"], "needs --engine dask"),
        (["--budget", "0.9"], "0.9 is not in the range"),
        (["--horizon", "0"], "0 is not in the range"),
    ],
)
def test_what_is_asked_wrongly_is_a_usage_error(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(command, arguments)

    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


def test_all_methods_can_be_listed() -> None:
    names = [
        line.split()[0] for line in CliRunner().invoke(command, ["--methods", "list"]).output.splitlines()
    ]

    assert {"learned", "paper", "paper-spirit", "paper-fd", "paper-pm", "t2+spe", "ready", "ewma", "zscore",
            "utilisation", "random", "clock", "accept", "half-space-trees", "boosting"} <= set(names)  # fmt: skip


def test_distributions_of_few_nodes_are_over_windows_of_time_and_say_so(report: Path) -> None:
    assert "With 2 nodes only, over 16 windows of time instead of over nodes." in report.read_text()


def test_every_figure_has_labelled_axes() -> None:
    plan = plan_control("positive", nodes=2, steps=600, seed=1)
    setting = Setting(
        methods=("learned", "ready", "paper", "clock"), truth="5%", sweeps=(("rank", (2.0, 4.0)),)
    )

    found = evaluate(plan, setting, workers=1)
    for picture in draw(found.study, first_rows(found.first)):
        *_, last = picture.figure.axes
        assert last.get_xlabel(), picture.name
        for axis in picture.figure.axes:
            # Where methods are rows, their names are the label; a sweep has it as its title.
            names = [tick.get_text() for tick in axis.get_yticklabels()]
            assert axis.get_ylabel() or axis.get_title("left") or "Pronto (default)" in names, picture.name


def test_the_page_is_short_before_folds_are_opened_and_readable_in_the_dark_and_in_print(
    report: Path,
) -> None:
    chromium = require_program("chromium", "chromium-browser", "google-chrome")
    sync_api = pytest.importorskip("playwright.sync_api")
    colours = (
        "[document.body, document.querySelector('figure')].map(e => getComputedStyle(e).backgroundColor)"
    )
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        try:
            page = browser.new_page(viewport={"width": 1280, "height": 800}, color_scheme="dark")
            page.goto(report.as_uri())
            assert page.evaluate("document.documentElement.scrollHeight") < 3 * 800
            dark = page.evaluate(colours)
            text = page.evaluate(
                "getComputedStyle(document.querySelector('figure svg text, figure svg path')).fill"
            )
            page.emulate_media(media="print")
            printed = page.evaluate(colours)
            folded = page.evaluate("document.querySelectorAll('details').length")
            page.evaluate("dispatchEvent(new Event('beforeprint'))")
            opened = page.evaluate("document.querySelectorAll('details[open]').length")
        finally:
            browser.close()

    assert all(sum(rgb(colour)) < 120 for colour in dark), dark
    assert sum(rgb(text)) < 120 or sum(rgb(text)) > 500, text
    assert all(sum(rgb(colour)) > 740 for colour in printed), printed
    assert folded == opened > 3


def rgb(colour: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", colour)[:3]]
