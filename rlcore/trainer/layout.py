"""How a model and its batches are divided over ranks, as a section of the configuration. Needs no torch."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from rlcore.section import Positive, Section


class Layout(Section):
    """Megatron-Core's dimensions of parallelism."""

    world_size: Positive = 1
    """Ranks in all: tensor x pipeline x context x data parallel, of which the last is what remains."""
    tensor_model_parallel_size: Positive = 1
    pipeline_model_parallel_size: Positive = 1
    virtual_pipeline_model_parallel_size: Annotated[int, Field(gt=1)] | None = None
    """Pieces of the model on each pipeline stage, whose layers stand in turn: smaller pipeline bubbles."""
    context_parallel_size: Positive = 1
    """Ranks that a sequence is divided over."""
    expert_model_parallel_size: Positive = 1
    """Ranks, among the data- and context-parallel ones, that the experts of a layer are divided over."""
    sequence_parallel: bool = False
    """Divide activations outside attention and MLP over the tensor-parallel ranks too."""

    @property
    def data_parallel_size(self) -> int:
        return self.world_size // self._model_parallel_size

    @property
    def divides_model(self) -> bool:
        """Whether no rank holds the whole model."""
        model_parallel = self.tensor_model_parallel_size * self.pipeline_model_parallel_size
        return model_parallel * self.expert_model_parallel_size > 1

    @property
    def _model_parallel_size(self) -> int:
        return self.tensor_model_parallel_size * self.pipeline_model_parallel_size * self.context_parallel_size

    @model_validator(mode="after")
    def _layout_is_possible(self) -> Layout:
        tp, pp, cp = (
            self.tensor_model_parallel_size,
            self.pipeline_model_parallel_size,
            self.context_parallel_size,
        )
        if self.world_size % self._model_parallel_size:
            raise ValueError(
                f"world_size {self.world_size} is not tp {tp} x pp {pp} x cp {cp} x dp: "
                f"it must be a multiple of {self._model_parallel_size}"
            )
        replicas = self.data_parallel_size * cp
        if replicas % self.expert_model_parallel_size:
            raise ValueError(
                f"expert_model_parallel_size {self.expert_model_parallel_size} does not divide "
                f"dp {self.data_parallel_size} x cp {cp} = {replicas}"
            )
        if self.sequence_parallel and tp == 1:
            raise ValueError("sequence_parallel divides over tensor-parallel ranks: tensor_model_parallel_size is 1")
        if self.virtual_pipeline_model_parallel_size and pp == 1:
            raise ValueError(
                "virtual_pipeline_model_parallel_size divides pipeline stages: pipeline_model_parallel_size is 1"
            )
        return self
