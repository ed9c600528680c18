"""The stages of an iteration, one file each: read batches, call rlcore, write a batch."""
