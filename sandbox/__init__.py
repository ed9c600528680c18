"""Runs untrusted code in Docker. Imports nothing of the other packages."""
