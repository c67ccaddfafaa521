"""Stage 2: vectors to subspace. One file per published method, by its published name."""

from prontosched.embedding.embedding import Embedding
from prontosched.embedding.fpca import FPCAEdge
from prontosched.embedding.frequent_directions import FrequentDirections
from prontosched.embedding.power_method import PowerMethod
from prontosched.embedding.spirit import Spirit

EMBEDDINGS: dict[str, type[Embedding]] = {
    kind.name: kind for kind in (FPCAEdge, Spirit, FrequentDirections, PowerMethod)
}

__all__ = ["EMBEDDINGS", "Embedding", "FPCAEdge", "FrequentDirections", "PowerMethod", "Spirit"]
