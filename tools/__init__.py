"""Tools around Pronto that are not part of it: `tools.load` makes a real load on this machine."""
