"""`rlvr verify`: whether a run directory is what its ledger and its manifests say, without changing it."""
