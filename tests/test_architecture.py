"""Imports point downwards, names are unique, and what is written of modules is true. No exemptions."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

import prontosched

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "prontosched"
# From the top. A part imports from lower rows only; parts of one row do not know each other.
ROWS = [
    {"__main__"},
    {"cli", "tables"},
    {"simulation"},
    {"agent", "evaluation", "dashboard", "recording", "sklearn", "river"},
    {"settings", "explain"},
    {"federation", "gates"},
    {"pipeline"},
    {"signals"},
    {"telemetry", "decision"},
    {"codec", "student", "subspace"},
    {"extras"},
    {"errors", "threads"},
]
# The same inside packages. A module imports from lower rows of its package only.
INNER_ROWS = {
    "federation": [
        {"nats"},
        {"nats_session", "service"},
        {"address", "aggregator", "member"},
        {"leases", "monitor", "pooling", "publisher"},
        {"accounts", "message"},
        {"schema", "signing"},
        {"link"},
        {"__init__", "tree"},
    ],
    "gates": [
        {"extender"},
        {"kubernetes"},
        {"controller", "dask", "registry"},
        {"agent_client", "hook", "htcondor", "lsf", "policy", "slurm", "sweep"},
        {"__init__", "gate", "kubernetes_client"},
        {"preference"},
    ],
    "pipeline": [
        {"presets"},
        {"fleet"},
        {"node"},
        {"__init__"},
        {"fpca", "frequent_directions", "power_method", "spirit"},
        {"embedding", "projection"},
    ],
    "signals": [
        {"__init__"},
        {"learned"},
        {"learner"},
        {"heads", "policy"},
        {"inputs", "quantiles", "record"},
        {"arithmetic", "reject_job"},
    ],
    "simulation": [{"report"}, {"study"}, {"run"}, {"rules"}, {"__init__", "cluster", "placers", "tenants"}],
}
PURE = {
    "subspace",
    "student",
    "codec",
    "pipeline",
    "decision",
    "signals",
    "evaluation.competitors",
    "telemetry.source",
    "telemetry.scaling",
    "telemetry.synthetic",
    "federation.tree",
    "federation.aggregator",
    "federation.message",
}
# Groups of entry points, written like modules.
ENTRY_POINTS = {"sources", "embeddings"}
IMPURE = {
    "asyncio",
    "datetime",
    "logging",
    "os",
    "pathlib",
    "random",
    "socket",
    "subprocess",
    "threading",
    "time",
}


@cache
def modules() -> list[tuple[str, ast.Module]]:
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")
        if name != "__init__":
            found.append((name, ast.parse(path.read_text(), str(path))))
    return found


def imports(tree: ast.AST) -> list[str]:
    names = []
    for item in ast.walk(tree):
        if isinstance(item, ast.Import):
            names += [alias.name for alias in item.names]
        elif isinstance(item, ast.ImportFrom):
            assert item.level == 0, "imports are absolute"
            names.append(item.module or "")
            if item.module == "prontosched":
                names += [f"prontosched.{alias.name}" for alias in item.names]
    return names


def row_of(part: str, rows: list[set[str]] = ROWS) -> int:
    for row, parts in enumerate(rows):
        if part in parts:
            return row
    raise AssertionError(f"{part} has no row: give it one in ROWS or INNER_ROWS")


def test_imports_point_downwards() -> None:
    wrong = []
    for module, tree in modules():
        part = module.split(".")[0]
        for name in imports(tree):
            other = name.split(".")[1] if name.startswith("prontosched.") else part
            if other != part and row_of(other) <= row_of(part):
                wrong.append(f"{module} imports {name}")

    assert wrong == []


def test_pure_modules_import_nothing_that_acts() -> None:
    wrong = []
    for module, tree in modules():
        if any(module == pure or module.startswith(f"{pure}.") for pure in PURE):
            wrong += [f"{module} imports {name}" for name in imports(tree) if name.split(".")[0] in IMPURE]

    assert wrong == []


def test_no_module_is_named_after_nothing() -> None:
    nothing = {"utils", "util", "common", "core", "helpers", "helper", "manager", "misc"}

    assert [name for name, _ in modules() if nothing & set(name.split("."))] == []


def imported_modules() -> dict[str, set[str]]:
    """Return what every module imports of the package, wherever in the file and for whatever purpose."""
    trees = dict(modules())
    graph: dict[str, set[str]] = {}
    for module, tree in trees.items():
        found = set()
        for item in ast.walk(tree):
            if isinstance(item, ast.Import):
                found |= {alias.name.removeprefix("prontosched.") for alias in item.names}
            elif isinstance(item, ast.ImportFrom) and (item.module or "").split(".")[0] == "prontosched":
                source = (item.module or "").removeprefix("prontosched").removeprefix(".")
                inner = {f"{source}.{alias.name}".removeprefix(".") for alias in item.names} & set(trees)
                found |= inner or {source}
        graph[module] = found & set(trees) - {module}
    return graph


def test_no_module_reaches_itself_through_its_imports() -> None:
    graph = imported_modules()
    reached = {module: set(others) for module, others in graph.items()}
    grown = True
    while grown:
        grown = False
        for others in reached.values():
            more = set().union(*(reached.get(other, set()) for other in others)) - others
            if more:
                others |= more
                grown = True

    assert sorted(module for module, others in reached.items() if module in others) == []


@pytest.mark.parametrize("package", INNER_ROWS)
def test_imports_inside_a_package_point_downwards(package: str) -> None:
    def row(module: str) -> int:
        return row_of(module.partition(".")[2] or "__init__", INNER_ROWS[package])

    graph = {name: others for name, others in imported_modules().items() if name.split(".")[0] == package}
    wrong = [
        f"{name} imports {other}"
        for name, others in graph.items()
        for other in others & set(graph)
        if row(other) <= row(name)
    ]

    assert wrong == []


def public_classes() -> Counter[str]:
    return Counter(
        item.name
        for _, tree in modules()
        for item in tree.body
        if isinstance(item, ast.ClassDef) and not item.name.startswith("_")
    )


def test_public_classes_have_names_of_their_own() -> None:
    assert sorted(name for name, count in public_classes().items() if count > 1) == []


def exists(dotted: str) -> bool:
    """Tell whether a dotted name below the package is a module, or something that a module defines."""
    known = dict(modules())
    if dotted in prontosched.__all__ or dotted in ENTRY_POINTS:
        return True
    parts = dotted.split(".")
    for cut in range(len(parts), 0, -1):
        module = ".".join(parts[:cut])
        if module not in known:
            continue
        scope: ast.AST = known[module]
        for part in parts[cut:]:
            named = [item for item in getattr(scope, "body", []) if part in names_of(item)]
            if not named:
                return False
            scope = named[0]
        return True
    return False


def names_of(item: ast.stmt) -> set[str]:
    if isinstance(item, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return {item.name}
    if isinstance(item, ast.Assign):
        return {target.id for target in item.targets if isinstance(target, ast.Name)}
    if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
        return {item.target.id}
    if isinstance(item, ast.ImportFrom):
        return {alias.asname or alias.name for alias in item.names}
    return set()


def test_what_is_written_of_modules_exists() -> None:
    written = [
        *PACKAGE.rglob("*.py"),
        *(ROOT / "docs").rglob("*.md"),
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
    ]
    wrong = []
    for path in written:
        for name in re.findall(r"`prontosched\.([a-z_]+(?:\.\w+)*)", path.read_text()):
            if not exists(name):
                wrong.append(f"{path.relative_to(ROOT)}: prontosched.{name}")

    assert wrong == []


def test_files_and_names_that_are_written_of_exist() -> None:
    written = [
        path for folder in ("src", "docs", "tools", "benchmarks") for path in (ROOT / folder).rglob("*.*")
    ]
    named = re.compile(r"(?<![\w./-])((?:[a-z_]+/)+[\w-]+\.(?:py|md|sh|toml|yaml))\b")
    wrong = []
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *written]:
        if path.suffix not in (".py", ".md"):
            continue
        text = path.read_text()
        for name in named.findall(text):
            # Below the package, as the pages name modules, below docs/, or beside the page.
            if not any((base / name).exists() for base in (ROOT, PACKAGE, ROOT / "docs", path.parent)):
                wrong.append(f"{path.relative_to(ROOT)}: {name}")
        for name in re.findall(r"[Ss]ee `(\w+)`", text) if path.suffix == ".py" else ():
            code = re.search(rf"(?<!`)\b{name}\b(?!`)", text)
            if not code and name not in public_classes() and not path.with_name(f"{name}.py").exists():
                wrong.append(f"{path.relative_to(ROOT)}: see {name}")

    assert wrong == []


def ways() -> dict[str, list[str]]:
    """Return the dotted names of every way that the journey describes, by its title."""
    page = (ROOT / "docs" / "journey.md").read_text()
    sections = re.split(r"^## ", page, flags=re.M)[1:]
    return {
        section.splitlines()[0]: re.findall(r"`((?!\w+\.(?:csv|html)`)[a-z_]+(?:\.[A-Za-z_]+)+)`", section)
        for section in sections
    }


def test_the_journey_names_what_exists() -> None:
    assert [name for names in ways().values() for name in names if not exists(name)] == []


def test_each_way_of_the_journey_is_short() -> None:
    found = ways()
    known = {name for name, _ in modules()}

    for title, names in found.items():
        passed = {max((m for m in known if f"{name}.".startswith(f"{m}.")), key=len) for name in names}
        assert 5 <= len(passed) <= 20, (title, sorted(passed))
