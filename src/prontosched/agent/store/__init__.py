"""What is on disk: the state of nodes, and the decision log."""
