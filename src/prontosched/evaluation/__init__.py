"""The same node, on traces: how right is a signal."""
