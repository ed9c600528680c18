"""Everything that is computed. Knows nothing of Prefect."""
