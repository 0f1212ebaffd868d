"""Build the demo's base model: a small Qwen3 with its own tokenizer, pretrained on synthetic plain text.

    python scripts/build_demo_model.py [--output src/weakdriven/models/embedded] [--device cuda]

The text resembles what a base model reads in pretraining: number facts, stories with a running count, and a few percent
of short question-and-answer notes. It never contains the numbers and operations of a demo test problem. Everything is
seeded: a rerun on the same machine gives the same tokenizer and, up to the device's rounding, the same weights.
"""

import argparse
import json
import random
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from weakdriven.data.demo import LEVELS, Problem, demo_problems, random_problem

HERE = Path(__file__).parent
END, TURN, END_TURN = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def number_facts(rng: random.Random) -> str:
    """Write equations without their story, which teach arithmetic but not how to solve a problem."""
    equations = [line for _ in range(3) for line in random_problem(rng, 5).equations]
    return " ".join(rng.sample(equations, 8))


def story(rng: random.Random, held_out: set) -> str:
    problem = harmless_problem(rng, rng.choice(LEVELS), held_out)
    sentences, value = [f"{problem.name} has {problem.start} {problem.thing}."], problem.start
    for i, step in enumerate(problem.steps):
        value = step.apply(value)
        sentences += [problem.event(i, step), f"Now {problem.name} has {value} {problem.thing}."]
    return " ".join(sentences)


def question_note(rng: random.Random, held_out: set) -> str:
    problem = harmless_problem(rng, 2, held_out)
    return f"Question: {problem.question}\nSolution: {problem.solution}"


def harmless_problem(rng: random.Random, level: int, held_out: set) -> Problem:
    while ((problem := random_problem(rng, level)).start, problem.steps) in held_out:
        pass
    return problem


def documents(seed: int, notes: float) -> Iterator[str]:
    """Yield endless pretraining documents: 40% number facts, a share of question notes, the rest stories."""
    rng = random.Random(f"pretraining-{seed}")
    held_out = {(p.start, p.steps) for p in demo_problems("test")}
    while True:
        draw = rng.random()
        if draw < 0.4:
            yield number_facts(rng)
        else:
            yield question_note(rng, held_out) if draw < 0.4 + notes else story(rng, held_out)


def build_tokenizer(seed: int, vocabulary: int, notes: float) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer in which each digit, with the space before it, is a separate token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(r" ?\d"), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    stream = documents(seed, notes)
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END, TURN, END_TURN],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    template_words = ["system\n", "user\n", "assistant\n"] * 500
    tokenizer.train_from_iterator([next(stream) for _ in range(5000)] + template_words, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END_TURN, pad_token=END, chat_template=CHAT_TEMPLATE, model_max_length=512
    )


def build_model(tokenizer: PreTrainedTokenizerFast, hidden: int, layers: int) -> Qwen3ForCausalLM:
    config = Qwen3Config(
        vocab_size=-(-len(tokenizer) // 64) * 64,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=hidden // 4,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )
    return Qwen3ForCausalLM(config)


def corpus(tokenizer: PreTrainedTokenizerFast, seed: int, count: int, notes: float) -> torch.Tensor:
    stream, ids = documents(seed, notes), []
    for _ in range(count // 1000):
        for document in tokenizer([next(stream) for _ in range(1000)])["input_ids"]:
            ids += [*document, tokenizer.pad_token_id]
    return torch.tensor(ids, dtype=torch.int16)


def batches(ids_N: torch.Tensor, seed: int, rows: int, length: int, device: str) -> Iterator[torch.Tensor]:
    """Yield random windows of the corpus."""
    generator, ids_N = torch.Generator().manual_seed(seed), ids_N.to(device)
    window = torch.arange(length, device=device)
    while True:
        start = torch.randint(len(ids_N) - length, (rows, 1), generator=generator).to(device)
        yield ids_N[start + window].long()


def pretrain(model: Qwen3ForCausalLM, stream: Iterator[torch.Tensor], steps: int, peak: float, device: str) -> float:
    model.to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak, betas=(0.9, 0.98), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, peak, total_steps=steps, pct_start=0.05)
    smooth = 0.0
    for step in range(steps):
        ids = next(stream).to(device)
        with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        smooth = loss.item() if step == 0 else 0.98 * smooth + 0.02 * loss.item()
        if step % 100 == 99:
            print(f"step {step + 1}/{steps}  loss {smooth:.4f}", flush=True)
    return smooth


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=HERE.parent / "src/weakdriven/models/embedded")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--documents", type=int, default=300_000)
    parser.add_argument("--notes", type=float, default=0.04, help="share of question notes among the documents")
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--rows", type=int, default=64, help="rows of 256 tokens in a batch")
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--vocabulary", type=int, default=448)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    begin = time.time()
    tokenizer = build_tokenizer(args.seed, args.vocabulary, args.notes)
    model = build_model(tokenizer, args.hidden, args.layers)
    ids_N = corpus(tokenizer, args.seed, args.documents, args.notes)
    size = sum(p.numel() for p in model.parameters())
    print(f"{size:,} parameters, {len(tokenizer)} tokens, {len(ids_N):,} in the corpus")
    stream = batches(ids_N, args.seed, args.rows, 256, args.device)
    loss = pretrain(model, stream, args.steps, args.learning_rate, args.device)
    model.generation_config = GenerationConfig(
        do_sample=False, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    model.to("cpu", torch.float32).save_pretrained(args.output)
    tokenizer.save_pretrained(args.output)
    settings = {k: v for k, v in vars(args).items() if k != "output"}
    built = {**settings, "corpus_tokens": len(ids_N), "trained_tokens": args.steps * args.rows * 256}
    built |= {"final_loss": round(loss, 4), "seconds": round(time.time() - begin), "torch": torch.__version__}
    (args.output / "built.json").write_text(json.dumps(built, indent=1) + "\n")
    print(f"{args.output}: {built}")


if __name__ == "__main__":
    main()
