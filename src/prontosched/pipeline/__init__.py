"""Stage 2: vectors to subspace. One file per published method, by its published name.

`EMBEDDINGS` names those that ship with Pronto; others register themselves through
the entry-point group `prontosched.embeddings` and are found by `find_embedding`.
"""

from prontosched.errors import SettingsError, suggestion
from prontosched.pipeline.embedding import Embedding
from prontosched.pipeline.fpca import FPCAEdge
from prontosched.pipeline.frequent_directions import FrequentDirections
from prontosched.pipeline.power_method import PowerMethod
from prontosched.pipeline.spirit import Spirit

EMBEDDINGS: dict[str, type[Embedding]] = {
    kind.name: kind for kind in (FPCAEdge, Spirit, FrequentDirections, PowerMethod)
}


def find_embedding(name: str) -> type[Embedding]:
    """Return the embedding called `name`: one of ours, or of an installed package."""
    if name in EMBEDDINGS:
        return EMBEDDINGS[name]
    from importlib.metadata import entry_points  # slow to import, and rarely needed

    others = {point.name: point for point in entry_points(group="prontosched.embeddings")}
    if name not in others:
        raise SettingsError(f"no embedding is called {name!r}{suggestion(name, [*EMBEDDINGS, *others])}")
    found: type[Embedding] = others[name].load()
    return found


__all__ = [
    "EMBEDDINGS",
    "Embedding",
    "FPCAEdge",
    "FrequentDirections",
    "PowerMethod",
    "Spirit",
    "find_embedding",
]
