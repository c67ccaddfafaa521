"""Stage 7: decision to schedulers."""
