"""Speed, size and worth of Pronto against references: `make bench ARGS="core"`, or `python -m benchmarks`."""
