"""All stages by name, in the order of an iteration."""

from tasks.advantage import advantage
from tasks.checkpoint import checkpoint
from tasks.evaluate import evaluate
from tasks.generate import generate
from tasks.logprobs import old_logprob, ref_logprob
from tasks.reward import reward
from tasks.sample import sample
from tasks.statistics import statistics
from tasks.sync import sync
from tasks.update import update
from tasks.values import values

__all__ = [
    "advantage",
    "checkpoint",
    "evaluate",
    "generate",
    "old_logprob",
    "ref_logprob",
    "reward",
    "sample",
    "statistics",
    "sync",
    "update",
    "values",
]
