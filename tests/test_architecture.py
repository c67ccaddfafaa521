"""Imports point downwards, and what is pure stays pure. No exemptions."""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "src" / "prontosched"
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
    {"codec", "subspace", "symmetric"},
    {"extras"},
    {"errors", "threads"},
]
PURE = {
    "subspace",
    "codec",
    "symmetric",
    "pipeline",
    "decision",
    "signals",
    "evaluation.competitors",
    "telemetry.counters",
    "telemetry.scaling",
    "telemetry.synthetic",
    "federation.tree",
    "federation.aggregator",
    "federation.message",
}
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


def row_of(part: str) -> int:
    for row, parts in enumerate(ROWS):
        if part in parts:
            return row
    raise AssertionError(f"{part} has no row: give it one in ROWS")


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
