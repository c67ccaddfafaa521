"""Stage 6: nodes to one global view."""
