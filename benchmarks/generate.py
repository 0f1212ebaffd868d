"""Generation engines on the same prompts: tokens per second, peak memory, and the number of equal texts.

    python benchmarks/generate.py --model DIR --questions gsm8k_test.jsonl --limit 256 --max-new-tokens 512
    python benchmarks/generate.py --model DIR --questions FILE --url http://127.0.0.1:8000     # a vLLM server as well
    python benchmarks/generate.py                                  # the embedded model and its problems, on a CPU
    python benchmarks/generate.py --random qwen2.5-0.5b --limit 600 --max-new-tokens 1024 --mean-length 400

FILE has one JSON object per line with a `question`, which is formatted by the model's chat template. All engines get
the same token ids and decode greedily; `ours, sampled` samples at temperature 0.7 and top-p 0.95. `generate()` is that
of transformers, in batches of similar length like ours; the texts of all engines are compared with its texts. In bf16,
different batch shapes round differently, so texts may diverge after some tokens although both are right.

`--random` needs no files: random weights of that shape, prompts of 40 to 200 random tokens. With `--mean-length`, part
of the vocabulary are stop tokens, so that rows sampled at temperature 1 end after that many tokens on average.
"""

import argparse
import json
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from common import append
from transformers import AutoModelForCausalLM, GenerationConfig, Qwen2Config

from weakdriven.data.prompts import Renderer
from weakdriven.data.rows.files import read_rows
from weakdriven.eval.generate import Completion, Engine, Request, Sampling, generate, graphs, request_seed
from weakdriven.eval.generate.local import LocalEngine, as_completion, fitting_batch
from weakdriven.eval.generate.server import ServerEngine
from weakdriven.models.load import load_model, load_tokenizer, locate_model

SHAPES = {
    "qwen2.5-0.5b": Qwen2Config(
        vocab_size=151936,
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=24,
        num_attention_heads=14,
        num_key_value_heads=2,
        max_position_embeddings=32768,
        tie_word_embeddings=False,  # the same cost; tied, a random model repeats its last token
    ),
    "tiny": Qwen2Config(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=False,
    ),
}


class Numbers:
    """A tokenizer whose texts are token ids."""

    def decode(self, ids: Sequence[int], **_) -> str:
        return " ".join(map(str, ids))


class WithoutGraphs:
    """Our engine without CUDA graphs: Python launches every step."""

    def __init__(self, engine: LocalEngine):
        self.engine = engine

    def complete(self, *args) -> None:
        worth, graphs.WORTH = graphs.WORTH, 10**9
        try:
            self.engine.complete(*args)
        finally:
            graphs.WORTH = worth


class Stock:
    """`generate()` of transformers in sorted static batches."""

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
    """Return completions in order, seconds, and the increase in peak device memory in GiB."""
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


def random_case(args: argparse.Namespace):
    """Make a random model, a tokenizer, requests and stop ids."""
    torch.manual_seed(0)
    draw, config = random.Random(0), SHAPES[args.random]
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[args.dtype]
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    stops = config.vocab_size // args.mean_length if args.mean_length else 0
    lengths = [draw.randint(40, 200) for _ in range(args.limit)]
    prompts = [[draw.randrange(stops, config.vocab_size) for _ in range(length)] for length in lengths]
    requests = [Request(ids, request_seed(42, str(row), 0)) for row, ids in enumerate(prompts)]
    return model, Numbers(), requests, tuple(range(stops))


def saved_case(args: argparse.Namespace):
    """Load the same from a model folder and a file of questions."""
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
    return model, tokenizer, requests, tuple(renderer.stop_ids)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="embedded:base")
    parser.add_argument("--random", choices=SHAPES, help="random weights of this shape instead of a model")
    parser.add_argument("--mean-length", type=int, help="with --random: mean tokens after which rows end at random")
    parser.add_argument("--questions", default="embedded:arithmetic")
    parser.add_argument("--limit", type=int, default=64)
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--batch-size", type=int, help="default: what fits, the same for our engine and generate()")
    parser.add_argument("--dtype", default="bf16" if torch.cuda.is_available() else "fp32")
    parser.add_argument("--style", default="plain")
    parser.add_argument("--url", help="a vLLM server of the same model")
    parser.add_argument("--only", nargs="*", help="parts of the names of variants")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("results.csv"))
    args = parser.parse_args()

    model, tokenizer, requests, stop = random_case(args) if args.random else saved_case(args)
    greedy = Sampling(args.max_new_tokens, stop)
    sampled = Sampling(args.max_new_tokens, stop, temperature=0.7, top_p=0.95)
    size = args.batch_size or fitting_batch(model, max(len(r.prompt) for r in requests) + args.max_new_tokens)
    ours = LocalEngine(model, tokenizer, size, "static")
    variants: dict[str, tuple[Engine, Sampling]] = {
        "generate(), sorted batches": (Stock(model, tokenizer, size), greedy),
        "ours, sorted batches": (ours, greedy),
        "ours, without graphs": (WithoutGraphs(ours), greedy),
        "ours, sampled": (ours, sampled),
        "continuous batching": (LocalEngine(model, tokenizer, size, "continuous"), greedy),
    }
    if args.mean_length:
        free = Sampling(args.max_new_tokens, stop, temperature=1.0)
        variants = {"ours, drawn": (ours, free), "ours, drawn without graphs": (WithoutGraphs(ours), free)}
    if args.url:
        variants["vLLM server"] = (ServerEngine(args.url), greedy)
    assert args.random or not args.mean_length, "--mean-length goes with --random"
    if args.only:
        variants = {name: value for name, value in variants.items() if any(part in name for part in args.only)}
    run(ours, requests[:2], Sampling(8, greedy.stop_ids))  # warm up
    reference: list[Completion] | None = None
    name = f"random {args.random}" if args.random else args.model.rstrip("/").split("/")[-1]
    shape = f"{name}, {len(requests)} prompts, {args.max_new_tokens} new, batch {size}"
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
