"""Rewards between the graders and the advantages: shaping, masks, and the statistics that outlive a batch.

`rlcore.shaping.pipeline.shape` is the whole; `settings` are its options, importable without polars.
"""
