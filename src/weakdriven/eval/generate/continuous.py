"""transformers' continuous batching with paged keys and values, asked for one result at a time."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from transformers import ContinuousBatchingConfig, GenerationConfig, PreTrainedModel

from weakdriven.errors import UserError
from weakdriven.eval.generate.requests import Request, Sampling

CPU_PAGES, CPU_BATCH_TOKENS = 64, 512
"""Without a device whose memory can be measured it would take most of the machine's."""


def complete_continuously(
    model: PreTrainedModel,
    requests: Sequence[Request],
    sampling: Sampling,
    report: Callable[[Mapping[int, list[int]]], None],
) -> None:
    """Complete greedily; results are reported as they come, and a request that failed is an error."""
    on_gpu = model.device.type == "cuda"
    settings = ContinuousBatchingConfig()
    if not on_gpu:
        longest = max(len(request.ids) for request in requests) + sampling.max_new_tokens
        pages, tokens = max(CPU_PAGES, 4 * -(-longest // 32)), max(CPU_BATCH_TOKENS, longest)
        settings = ContinuousBatchingConfig(page_size=32, num_blocks=pages, max_batch_tokens=tokens)
    settings.auto_switch_to_flash = False  # the attention that was asked for is the one that answers
    greedy = GenerationConfig(
        do_sample=False, max_new_tokens=sampling.max_new_tokens, eos_token_id=list(sampling.stop_ids), pad_token_id=0
    )
    engine: Any = model
    with engine.continuous_batching_context_manager(
        generation_config=greedy, continuous_batching_config=settings, block=True, timeout=5, warmup=on_gpu
    ) as manager:
        names = manager.add_requests(
            inputs=[request.ids for request in requests], max_new_tokens=sampling.max_new_tokens
        )
        row_of = {name: row for row, name in enumerate(names)}
        while row_of:
            result = manager.get_result(timeout=1)
            if result is None and not manager.is_running():
                raise UserError(
                    f"transformers' continuous batching stopped with {len(row_of)} of {len(requests)} requests open; "
                    "what came is kept. Use eval.batching: static."
                )
            if result is None or not result.is_finished():
                continue
            if result.error is not None:
                raise UserError(f"transformers' continuous batching failed on a request ({result.error}).")
            report({row_of.pop(result.request_id): result.generated_tokens})
