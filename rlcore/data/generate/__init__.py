"""The datasets that ship in configs/data, each by a module of its own."""
