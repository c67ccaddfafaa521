"""Writes docs/api.md: every public name of the package with its signature."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parent.parent / "docs" / "api.md"
# What programs may rely on, by module, with one line for each module.
PUBLIC = {
    "prontosched": ("The core, from vectors to decisions.", None),
    "prontosched.tables": ("What `replay` returns.", ["Replay"]),
    "prontosched.sklearn": ("For scikit-learn; needs the extra `evaluation`.", None),
    "prontosched.river": ("For River; needs the extra `evaluation`.", None),
    "prontosched.decision": ("For signals of one's own.", ["FleetDecision", "FleetEvidence", "FleetSignal"]),
    "prontosched.signals": ("Signals by name.", ["SignalKind", "find_signal"]),
    "prontosched.pipeline": ("Embeddings by name.", ["find_embedding"]),
    "prontosched.telemetry": ("Sources by name.", ["open_source"]),
    "prontosched.telemetry.source": ("For sources of one's own.", ["Sample", "Source"]),
    "prontosched.gates.registry": ("Gates by name.", ["make_gate"]),
    "prontosched.gates.gate": (
        "For gates of one's own.",
        [
            *("Gate", "PreferringGate", "ListingGate", "QueueGate"),
            *("Observed", "Verdict", "Rank", "MarkFiles", "label", "read_label"),
        ],
    ),
    "prontosched.errors": (
        "What a user can act on; all derive from `ProntoError`.",
        [
            "FederationError",
            "IntegrationError",
            "NewerStateError",
            "SettingsError",
            "StateError",
            "TelemetryError",
        ],
    ),
}
HEAD = """# Public API

Every name that programs may rely on, with its signature. These follow semantic versioning: a name or an argument goes
only with a new major version, and until 1.0 with a new minor one. Everything else may change with any version.
`make docs` writes this page from the source, and a test keeps the two together.
"""


def signature(thing: Any) -> str:
    """Return a signature as it stands in the source."""
    try:
        text = str(inspect.signature(thing))
    except (TypeError, ValueError):
        return ""
    # Annotations are kept as texts; a default that is a text keeps its quotes.
    text = re.sub(r"ForwardRef\(('[^']*')\)", r"\1", text)
    text = re.sub(r"(: |-> )'([^']*)'", r"\1\2", text)
    text = re.sub(r"^\((?:self|cls)(?:, )?", "(", text)
    return text.removesuffix(" -> None") if isinstance(thing, type) else text


def summary(thing: Any) -> str:
    """Return the first paragraph of a docstring as one line."""
    return " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())


def lines_of(name: str, thing: Any) -> list[str]:
    """Describe a function, or a class with what it defines itself."""
    protocol = getattr(thing, "_is_protocol", False)
    plain = protocol or (isinstance(thing, type) and issubclass(thing, Exception))
    lines = [f"- `{name}{'' if plain else signature(thing)}`: {summary(thing)}"]
    if isinstance(thing, type) and not issubclass(thing, Exception):
        for member, value in inspect.getmembers_static(thing):
            if member.startswith("_"):
                continue
            if isinstance(value, classmethod | staticmethod):
                value = value.__func__
            if isinstance(value, property):
                lines.append(f"    - `.{member}`: {summary(value)}")
            elif inspect.isfunction(value) and value.__module__.startswith("prontosched"):
                lines.append(f"    - `.{member}{signature(value)}`: {summary(value)}")
    return lines


def page() -> str:
    """Return the page for the package as it is now."""
    parts = [HEAD]
    for module, (about, names) in PUBLIC.items():
        found = importlib.import_module(module)
        parts.append(f"\n## {module}\n\n{about}\n")
        for name in sorted(names or found.__all__):
            parts.append("\n".join(lines_of(name, getattr(found, name))))
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
