"""One rank of the critic: V of the states that PPO's advantages are measured from."""

from __future__ import annotations

import polars as pl
import torch
from mbridge.core.bridge import Bridge
from transformers import AutoConfig

from rlcore.config import Config, model_directory
from rlcore.trainer.learner import Learner
from rlcore.trainer.model import UnsupportedModel, ValueModel, load_critic
from rlcore.trainer.objective import Totals
from rlcore.trainer.report import value_metrics
from rlcore.trainer.value_objective import value_objective


class CriticRank(Learner):
    """A data-parallel rank that trains the critic.

    The value that belongs to response token t is V of the state before that token: of prompt and response tokens
    before t.
    """

    def __init__(
        self,
        config: Config,
        rank: int = 0,
        world_size: int = 1,
        master_address: str = "127.0.0.1",
        master_port: int = 0,
    ) -> None:
        """Load `config.critic_model` under a value head that says 0 everywhere.

        Raises:
            FileNotFoundError: no model at config.critic.path.
            UnsupportedModel: a model that this trainer does not compute, or of another vocabulary than the policy.
            ValueError: a rank, world size or port that cannot be.
        """
        self.directory = model_directory(config.critic_model, key="critic.path")
        critic = config.critic
        own = {
            "learning_rate": critic.learning_rate,
            "min_lr": critic.min_lr,
            "max_grad_norm": critic.max_grad_norm,
        }
        settings = config.trainer.model_copy(update=own)
        super().__init__(config, settings, critic.epochs, rank, world_size, master_address, master_port)

    def _load_model(self, dtype: torch.dtype) -> tuple[ValueModel, Bridge]:
        model, bridge = load_critic(self.directory, dtype)
        policy = AutoConfig.from_pretrained(model_directory(self.config.model))
        if model.vocab_size != policy.vocab_size:
            raise UnsupportedModel(
                f"critic.path: {self.directory} has a vocabulary of {model.vocab_size} tokens, the policy one of "
                f"{policy.vocab_size}: a critic reads the policy's tokens, so it needs the same tokenizer"
            )
        return model, bridge

    def values(self, batch: pl.DataFrame) -> pl.DataFrame:
        """A ValueBatch of this rank's share of the rows, in their order; all rows in a world of one.

        Args:
            batch: with columns sample_id, prompt_ids and response_ids.
        """
        self.reload()
        return self._score_responses("values", batch)

    def _accumulate_gradients(self, batch: pl.DataFrame, rows: list[int], totals: Totals) -> dict[str, float]:
        shares = []
        for micro in self._micro_batches(batch, rows):
            [values] = self._forward(micro)
            loss, share = value_objective(self.config, batch, micro, values, totals)
            loss.backward()
            shares.append(share)
        return value_metrics(shares)
