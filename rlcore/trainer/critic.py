"""One rank of the critic: V of the states that PPO's advantages are measured from."""

from __future__ import annotations

import polars as pl
import torch
from mbridge.core.bridge import Bridge
from torch import Tensor
from transformers import AutoConfig

from rlcore.config import Config, model_directory
from rlcore.trainer.learner import Learner
from rlcore.trainer.loading import UnsupportedModel, load_critic
from rlcore.trainer.microbatches import MicroBatch
from rlcore.trainer.model import ValueModel
from rlcore.trainer.objective import Totals
from rlcore.trainer.report import value_metrics
from rlcore.trainer.value_objective import value_objective


class CriticRank(Learner):
    """One rank of the critic.

    The value that belongs to response token t is V of the state before that token: of prompt and response tokens
    before t.
    """

    def __init__(
        self,
        config: Config,
        rank: int = 0,
        master_address: str = "127.0.0.1",
        master_port: int = 0,
    ) -> None:
        """Load `config.critic_model` under a value head that says 0 everywhere.

        Raises:
            FileNotFoundError: no model at config.critic.path.
            UnsupportedModel: a model that this trainer does not compute, or of another vocabulary than the policy.
            ValueError: a rank or port that cannot be.
        """
        self.directory = model_directory(config.critic_model, key="critic.path")
        critic = config.critic
        own = {
            "learning_rate": critic.learning_rate,
            "min_lr": critic.min_lr,
            "max_grad_norm": critic.max_grad_norm,
        }
        settings = config.trainer.model_copy(update=own)
        super().__init__(config, settings, critic.epochs, rank, master_address, master_port)

    def _load_model(self, dtype: torch.dtype) -> tuple[list[ValueModel], Bridge]:
        own, policy = (
            AutoConfig.from_pretrained(directory).vocab_size
            for directory in (self.directory, model_directory(self.config.model))
        )
        if own != policy:
            raise UnsupportedModel(
                f"critic.path: {self.directory} has a vocabulary of {own} tokens, the policy one of {policy}: "
                "a critic reads the policy's tokens, so it needs the same tokenizer"
            )
        return load_critic(self.settings, self.directory, dtype)

    def values(self, batch: pl.DataFrame) -> pl.DataFrame:
        """A ValueBatch of this rank's share of the rows, in their order; all rows in a world of one.

        Args:
            batch: with columns sample_id, prompt_ids and response_ids.
        """
        self.reload()
        return self._score_responses("values", batch)

    def _objective(
        self, batch: pl.DataFrame, totals: Totals, micro: MicroBatch, outputs: list[Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        [values] = outputs
        return value_objective(self.config, batch, micro, values, totals)

    def _metrics(self, parts: list[dict[str, Tensor]]) -> dict[str, float]:
        return value_metrics(parts)
