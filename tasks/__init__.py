"""One file per stage of an iteration: read batches, call rlcore, write a batch."""
