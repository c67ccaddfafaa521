"""Stage 2: vectors to subspace. One file per published method, by its published name."""

from prontosched.pipeline.embedding import Embedding
from prontosched.pipeline.fpca import FPCAEdge
from prontosched.pipeline.frequent_directions import FrequentDirections
from prontosched.pipeline.power_method import PowerMethod
from prontosched.pipeline.spirit import Spirit

EMBEDDINGS: dict[str, type[Embedding]] = {
    kind.name: kind for kind in (FPCAEdge, Spirit, FrequentDirections, PowerMethod)
}

__all__ = ["EMBEDDINGS", "Embedding", "FPCAEdge", "FrequentDirections", "PowerMethod", "Spirit"]
