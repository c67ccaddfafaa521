"""How fast and how large: references, peers and the table behind `pronto bench`."""
