"""A read-only web view of a node or a fleet."""
