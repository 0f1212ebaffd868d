"""Generation engines on the same prompts: tokens per second, peak memory, and how many texts are the same.

    python benchmarks/generate.py --model DIR --questions gsm8k_test.jsonl --limit 256 --max-new-tokens 512
    python benchmarks/generate.py --model DIR --questions FILE --url http://127.0.0.1:8000     # a vLLM server as well
    python benchmarks/generate.py                                  # the embedded model and its problems, on a CPU

FILE holds one JSON object per line with a `question`; it is put through the model's chat template. Every engine gets
the same token ids and decodes greedily; `ours, sampled` draws at temperature 0.7 and top-p 0.95. `generate()` is
transformers' own, in batches of similar length as ours, and the text of each engine is compared with its text: in
bf16 a different batch shape rounds differently, so texts part company after some tokens without either being wrong.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from common import append
from transformers import GenerationConfig

from weakdriven.data.prompts import Renderer
from weakdriven.data.sources import read_rows
from weakdriven.generate import Completion, Engine, Request, Sampling, generate, request_seed
from weakdriven.generate.local import LocalEngine, as_completion, fitting_batch
from weakdriven.generate.server import ServerEngine
from weakdriven.models.load import load_model, load_tokenizer, locate_model


class Stock:
    """transformers' generate() in sorted static batches."""

    def __init__(self, model, tokenizer, batch_size: int):
        self.model, self.tokenizer, self.batch_size = model, tokenizer, batch_size

    @torch.inference_mode()
    def complete(self, requests: Sequence[Request], sampling: Sampling, on_done: Callable) -> None:
        order = sorted(range(len(requests)), key=lambda row: len(requests[row].prompt))
        config = GenerationConfig(
            do_sample=False,
            max_new_tokens=sampling.max_new_tokens,
            eos_token_id=list(sampling.stop_ids),
            pad_token_id=0,
        )
        self.model.generation_config = config
        for begin in range(0, len(order), self.batch_size):
            rows = order[begin : begin + self.batch_size]
            width = max(len(requests[row].prompt) for row in rows)
            pads = [width - len(requests[row].prompt) for row in rows]
            ids = [[0] * pad + requests[row].prompt for row, pad in zip(rows, pads, strict=True)]
            mask = [[0] * pad + [1] * (width - pad) for pad in pads]
            device = self.model.device
            written = self.model.generate(
                input_ids=torch.tensor(ids, device=device), attention_mask=torch.tensor(mask, device=device)
            )
            new = written[:, width:].tolist()
            on_done({row: as_completion(self.tokenizer, one, sampling) for row, one in zip(rows, new, strict=True)})


def run(engine: Engine, requests: list[Request], sampling: Sampling) -> tuple[list[Completion], float, float]:
    """Completions in order, seconds, and peak GiB on the device above what was there."""
    found: dict[int, Completion] = {}
    before = 0
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    begin = time.perf_counter()
    generate(engine, requests, sampling, found.update)
    seconds = time.perf_counter() - begin
    peak = (torch.cuda.max_memory_allocated() - before) / 2**30 if torch.cuda.is_available() else float("nan")
    return [found[row] for row in range(len(requests))], seconds, peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="embedded:base")
    parser.add_argument("--questions", default="embedded:arithmetic")
    parser.add_argument("--limit", type=int, default=64)
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--batch-size", type=int, help="unset: what fits, the same for ours and generate()")
    parser.add_argument("--dtype", default="bf16" if torch.cuda.is_available() else "fp32")
    parser.add_argument("--style", default="plain")
    parser.add_argument("--url", help="a vLLM server of the same model")
    parser.add_argument("--only", nargs="*", help="names of variants, in part")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("results.csv"))
    args = parser.parse_args()

    folder = locate_model(args.model)
    tokenizer = load_tokenizer(folder)
    model = load_model(folder, precision=args.dtype).eval()
    model = model.cuda() if torch.cuda.is_available() else model
    renderer = Renderer(tokenizer, "math", args.style)
    questions = [row["question"] for row in read_rows(args.questions, "test")][: args.limit]
    prompts = [renderer.prompt([{"role": "user", "content": question}]) for question in questions]
    requests = [
        Request(ids, request_seed(42, str(row), 0))
        for row, ids in enumerate(tokenizer(prompts, add_special_tokens=False)["input_ids"])
    ]
    greedy = Sampling(args.max_new_tokens, tuple(renderer.stop_ids))
    sampled = Sampling(args.max_new_tokens, tuple(renderer.stop_ids), temperature=0.7, top_p=0.95)
    size = args.batch_size or fitting_batch(model, max(len(r.prompt) for r in requests) + args.max_new_tokens)
    variants: dict[str, tuple[Engine, Sampling]] = {
        "generate(), sorted batches": (Stock(model, tokenizer, size), greedy),
        "ours, sorted batches": (LocalEngine(model, tokenizer, size, "static"), greedy),
        "ours, sampled": (LocalEngine(model, tokenizer, size, "static"), sampled),
        "continuous batching": (LocalEngine(model, tokenizer, size, "continuous"), greedy),
    }
    if args.url:
        variants["vLLM server"] = (ServerEngine(args.url), greedy)
    if args.only:
        variants = {name: value for name, value in variants.items() if any(part in name for part in args.only)}
    run(LocalEngine(model, tokenizer, size, "static"), requests[:2], Sampling(8, greedy.stop_ids))  # warm up
    reference: list[Completion] | None = None
    shape = f"{args.model.rstrip('/').split('/')[-1]}, {len(requests)} prompts, {args.max_new_tokens} new, batch {size}"
    for name, (engine, sampling) in variants.items():
        try:
            completions, seconds, peak = run(engine, requests, sampling)
        except Exception as error:
            print(json.dumps({"variant": name, "failed": str(error)[:300]}), flush=True)
            continue
        reference = reference or completions
        tokens = sum(one.tokens for one in completions)
        same = sum(a.text == b.text for a, b in zip(reference, completions, strict=True))
        cut = sum(one.finish == "length" for one in completions)
        note = f"{tokens / seconds:.0f} tokens/s; {tokens} tokens, {cut} cut; {same} texts as the first"
        milliseconds = {key: round(1000 * seconds, 2) for key in ("median_ms", "low_ms", "high_ms")}
        facts = {"shape": shape, "dtype": args.dtype, "peak_gib": round(peak, 3), "note": note}
        append(args.out, benchmark="generate", variant=name, **milliseconds, **facts)


if __name__ == "__main__":
    main()
