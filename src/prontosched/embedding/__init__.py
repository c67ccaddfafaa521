"""Stage 2: vectors to subspace."""
