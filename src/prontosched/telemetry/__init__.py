"""Stage 1: machine to vectors."""
