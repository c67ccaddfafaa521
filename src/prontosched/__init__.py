"""Pronto: every node decides for itself whether it can take another job."""
