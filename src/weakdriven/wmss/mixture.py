"""The mixture of joint training as one transformers model: two causal LMs whose logits are mixed.

Import this module to let `AutoModelForCausalLM.from_pretrained` load what `weakdriven export mix` writes.
"""

import inspect
import math
from copy import deepcopy
from typing import Any, ClassVar

from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache, GenerationConfig, GenerationMixin
from transformers import PreTrainedConfig as Config
from transformers.cache_utils import Cache
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.modeling_utils import PreTrainedModel
from transformers.utils.generic import can_return_tuple

from weakdriven.errors import UserError
from weakdriven.models.head import refuse_different_heads
from weakdriven.models.load import MIXTURE


class MixtureConfig(Config):
    """Configurations of two models, and the share of the strong logits (paper: lambda); above 1 it extrapolates."""

    model_type = MIXTURE
    sub_configs: ClassVar[dict[str, Any]] = dict.fromkeys(("strong_config", "weak_config"), AutoConfig)  # pyright: ignore

    strong_config: dict | Config | None = None
    weak_config: dict | Config | None = None
    strong_weight: float = 0.5
    use_cache: bool = True

    def __post_init__(self, **kwargs: Any) -> None:
        if not 0 <= self.strong_weight < math.inf:
            raise UserError(f"strong_weight is {self.strong_weight}; it must be a number of at least 0.")
        for name in self.sub_configs:
            given: Any = getattr(self, name) or {"model_type": "qwen3"}  # transformers calls it without arguments
            setattr(self, name, given if isinstance(given, Config) else AutoConfig.for_model(**given))
        super().__post_init__(**kwargs)

    def _smaller(self, name: str) -> int:
        texts: Any = [config.get_text_config() for config in (self.strong_config, self.weak_config)]  # pyright: ignore
        return min(getattr(text, name) for text in texts)

    @property
    def vocab_size(self) -> int:
        """Vocabulary rows that both heads have; the rest is padding."""
        return self._smaller("vocab_size")

    @property
    def max_position_embeddings(self) -> int:
        return self._smaller("max_position_embeddings")


class MixtureCache(Cache):
    """One cache for each model; their layers are listed together, so reordering or cropping acts on both."""

    def __init__(self, branches: list[DynamicCache]):
        super().__init__(layers=[layer for branch in branches for layer in branch.layers])
        self.branches = branches


class MixtureForCausalLM(PreTrainedModel, GenerationMixin):
    """Two causal LMs whose logits are mixed: `strong_weight * strong + (1 - strong_weight) * weak`.

    A model whose share is 0 does not run.

    Args:
        strong, weak: Loaded models (default: made from the configuration). `from_pair` makes the configuration too.
    """

    config_class = MixtureConfig
    base_model_prefix = ""
    _supports_sdpa = _supports_flash_attn = _supports_flex_attn = _supports_attention_backend = True

    def __init__(
        self, config: MixtureConfig, strong: PreTrainedModel | None = None, weak: PreTrainedModel | None = None
    ):
        super().__init__(config)
        self.strong: Any = strong or AutoModelForCausalLM.from_config(config.strong_config, trust_remote_code=False)
        self.weak: Any = weak or AutoModelForCausalLM.from_config(config.weak_config, trust_remote_code=False)
        self.post_init()

    @classmethod
    def from_pair(
        cls,
        strong: PreTrainedModel,
        weak: PreTrainedModel,
        *,
        strong_weight: float = 0.5,
        vocabulary: int | None = None,
    ) -> "MixtureForCausalLM":
        """Mix two loaded models; they are not copied.

        Args:
            vocabulary: Size of the common vocabulary; needed if the heads are padded to different sizes.
        """
        refuse_different_heads(strong, weak, vocabulary)
        configs: dict[str, Any] = {"strong_config": deepcopy(strong.config), "weak_config": deepcopy(weak.config)}
        config = MixtureConfig(**configs, strong_weight=strong_weight, dtype=strong.dtype)
        mixture = cls(config, strong, weak)
        mixture.generation_config = deepcopy(strong.generation_config) or GenerationConfig()
        mixture.generation_config.cache_implementation = None  # Gemma sets one that fits a single model
        return mixture.eval()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Return mixed logits in float32, over the vocabulary that both heads have."""
        for name in ("inputs_embeds", "output_attentions", "output_hidden_states"):
            if kwargs.pop(name, None) not in (None, False):
                raise UserError(f"The mixture does not support {name}; call its .strong or .weak model instead.")
        if use_cache is None:
            use_cache = self.config.use_cache and self._can_cache()
        if past_key_values is None and use_cache:
            past_key_values = self._new_cache()
        if past_key_values is not None and not isinstance(past_key_values, MixtureCache):
            raise UserError(
                f"The mixture got a {type(past_key_values).__name__} as past_key_values, but it needs one cache for "
                "each model. Pass the one that it returned, or none."
            )
        keep = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        mixed: Any = None
        caches = [None, None] if past_key_values is None else past_key_values.branches
        for (model, share), cache in zip(self._branches(), caches, strict=False):
            inputs = {"position_ids": position_ids, "logits_to_keep": logits_to_keep, "past_key_values": cache}
            known = inspect.signature(model.forward).parameters
            inputs = {name: value for name, value in inputs.items() if name in known}
            logits = model(
                input_ids=input_ids, attention_mask=attention_mask, use_cache=use_cache, **inputs, **kwargs
            ).logits
            if "logits_to_keep" not in inputs:
                logits = logits[:, keep]
            own = share * logits[..., : self.config.vocab_size].float()
            mixed = own if mixed is None else mixed + own.to(mixed.device)
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=mixed, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
        return CausalLMOutputWithPast(loss=loss, logits=mixed, past_key_values=past_key_values)  # pyright: ignore

    def _branches(self) -> list[tuple[Any, float]]:
        weight = self.config.strong_weight
        return [(model, share) for model, share in ((self.strong, weight), (self.weak, 1 - weight)) if share]

    def _can_cache(self) -> bool:
        return all(
            model._supports_default_dynamic_cache() and "past_key_values" in inspect.signature(model.forward).parameters
            for model, _ in self._branches()
        )

    def _new_cache(self) -> MixtureCache:
        if not self._can_cache():
            raise UserError(
                f"{type(self.strong).__name__} or {type(self.weak).__name__} does not support a dynamic cache; pass "
                "use_cache=False."
            )
        return MixtureCache([DynamicCache(config=model.config) for model, _ in self._branches()])

    def _prepare_cache_for_generation(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, generation_config: GenerationConfig, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> None:
        """Make a cache for each model; `generate` would make a single one."""
        if model_kwargs.get("past_key_values") is None and generation_config.use_cache is not False:
            if generation_config.cache_implementation not in (None, "dynamic"):
                raise UserError(
                    f"cache_implementation is {generation_config.cache_implementation!r}; the mixture generates with "
                    "dynamic caches only. Leave it out."
                )
            model_kwargs["past_key_values"] = self._new_cache()
        else:
            base: Any = super()
            base._prepare_cache_for_generation(generation_config, model_kwargs, *args, **kwargs)


AutoConfig.register(MixtureConfig.model_type, MixtureConfig)
AutoModelForCausalLM.register(MixtureConfig, MixtureForCausalLM)
