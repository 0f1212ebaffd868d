"""Cross-checks an evaluation: runs our prompts through lm-evaluation-harness's generation, extraction and metric.

    pip install "lm-eval==0.4.13" "pytablewriter>=1.2,<1.3"     # best in a separate environment, with weakdriven
    weakdriven eval --model M --benchmarks gsm8k,math500 --output DIR
    python research/lm_eval/compare.py --model M --results DIR

M is a folder, and DIR holds greedy answers. For each benchmark that both have, DIR/<benchmark>/harness gets lm-eval's
`samples.jsonl` and `results.json`, and the task as it was run: `task.yaml` and `rows.jsonl`. In bf16, a text depends on
the other rows of its batch, so different texts alone are no error. If the texts are equal but the verdicts are not, the
graders differ.

Only the inputs are ours: items, rendered prompts, stop strings and token budget. Tasks that lm-eval scores by
log-likelihood (logiqa2) or with a metric from the Hub (humaneval_plus, mbpp_plus) are left out, and so is
minerva_math500, which needs antlr4 4.11, with which math-verify reads percentages differently.
"""

import argparse
import json
import logging
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import torch
import yaml
from transformers import GenerationConfig

from weakdriven.data.prompts import Renderer
from weakdriven.models.load import load_tokenizer
from weakdriven.runs.files import read_json, read_jsonl, write_json, write_jsonl

SEED = 1234
Rows = list[dict[str, Any]]


class HarnessTask(NamedTuple):
    definition: str
    """lm-eval's task file, in its folder of tasks."""
    metric: str
    """The metric that reads an answer where our prompts request it, as `metric,filter`."""


# GSM8K's strict-match wants "#### 18"; flexible-extract takes the last number. lm-eval's hendrycks_math500 compares all
# text between the first and the last dollar sign; aime25 has the same comparison after reading the last \boxed.
TASKS = {
    "aime2025": HarnessTask("aime/aime25.yaml", "exact_match,none"),
    "gsm8k": HarnessTask("gsm8k/gsm8k.yaml", "exact_match,flexible-extract"),
    "math500": HarnessTask("aime/aime25.yaml", "exact_match,none"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, type=Path, help="folder of the model that was evaluated")
    parser.add_argument("--adapter", type=Path, help="folder of a PEFT adapter over it")
    parser.add_argument("--results", required=True, type=Path, help="output folder of weakdriven eval")
    parser.add_argument("--precision", default="bf16", choices=["bf16", "fp32"])
    parser.add_argument("--batch-size", type=int, default=16)
    options = parser.parse_args()
    found = [name for name in TASKS if (options.results / name / "samples.jsonl").is_file()]
    if not found:
        raise SystemExit(f"{options.results} has none of {', '.join(TASKS)}.")
    tokenizer = load_tokenizer(options.model)
    stop_ids = Renderer(tokenizer, "math", "plain").stop_ids
    model = load_model(options, [str(tokenizer.decode([token])) for token in stop_ids])
    for name in found:
        check = cross_check(model, tokenizer, name, options.results / name, stop_ids, options.batch_size)
        print(f"{name}: {check['items']} items, {check['metric']}")
        print(f"  accuracy: ours {check['ours']:.1%}, lm-eval {check['accuracy']:.1%}, lm-eval's grader on our texts")
        print(
            f"  {check['accuracy_of_our_texts']:.1%}; other text: {len(check['other_text'])}, other verdict: ", end=""
        )
        print(len(check["other_verdict"]))


def cross_check(
    model: Any, tokenizer: Any, benchmark: str, folder: Path, stop_ids: list[int], batch_size: int
) -> dict[str, Any]:
    """Compute lm-eval's greedy completions and scores for the rows of a benchmark that we have evaluated."""
    task, out, rows = TASKS[benchmark], folder / "harness", list(read_jsonl(folder / "samples.jsonl"))
    scores = read_json(folder / "scores.json")
    if scores["protocol"].get("temperature"):
        raise SystemExit(f"{folder} has sampled answers; only greedy ones can be compared.")
    budget = scores["protocol"]["max_new_tokens"]
    check_prompts(model, tokenizer, rows, budget)
    out.mkdir(parents=True, exist_ok=True)
    stop = [str(tokenizer.decode([token])) for token in stop_ids]
    definition = write_task(benchmark, rows, stop, budget, out)
    results, samples, found = run_task(model, definition, batch_size)
    write_jsonl(out / "samples.jsonl", samples)
    write_json(out / "results.json", found)
    graded = run_task(saved_answers(rows), definition, batch_size)[0][task.metric]
    shutil.rmtree(out / ".cache", ignore_errors=True)
    return summary(task, results, samples, rows) | {"ours": scores["accuracy"], "accuracy_of_our_texts": graded}


def load_model(options: argparse.Namespace, stop: list[str]) -> Any:
    """Load lm-eval's `hf` model without its additions to the prompt and without the checkpoint's decoding settings."""
    from lm_eval.models.huggingface import HFLM  # pyright: ignore

    model = HFLM(
        pretrained=str(options.model.resolve()),  # an absolute path is never read as a Hub id
        peft=options.adapter and str(options.adapter.resolve()),
        device="cuda" if torch.cuda.is_available() else "cpu",
        dtype=torch.float32 if options.precision == "fp32" else torch.bfloat16,
        batch_size=options.batch_size,
        add_bos_token=False,
    )
    # Rows of a batch end only at EOS tokens. After a stop string, a row continues until all rows have ended, and its
    # text would include what follows, because special tokens are not decoded.
    tokenizer: Any = model.tokenizer
    ends = [tokenizer.encode(text, add_special_tokens=False) for text in stop]
    ids = sorted({ids[0] for ids in ends if len(ids) == 1} | {tokenizer.eos_token_id})
    # penalties or beams in a checkpoint's config would change what "greedy" means
    model.model.generation_config = GenerationConfig(do_sample=False, eos_token_id=ids)
    return model


def check_prompts(model: Any, tokenizer: Any, rows: Rows, budget: int) -> None:
    """Raise an error unless lm-eval sees the tokens of our generation; it truncates prompts with only a warning."""
    longest = 0
    for row in rows:
        ours = tokenizer(row["prompt"], add_special_tokens=False)["input_ids"]
        if ours != model.tok_batch_encode([row["prompt"]])[0][0].tolist():
            raise SystemExit(f"lm-eval tokenises the prompt of {row['id']} differently.")
        longest = max(longest, len(ours))
    if longest + budget > model.max_length:
        raise SystemExit(
            f"A prompt of {longest} tokens and {budget} new ones do not fit in {model.max_length} positions."
        )


def write_task(benchmark: str, rows: Rows, stop: list[str], budget: int, out: Path) -> Path:
    """Write lm-eval's task file with our rows, prompts and endings; its metric and filters stay."""
    import lm_eval.tasks  # pyright: ignore

    data = out.resolve() / "rows.jsonl"
    write_jsonl(data, [{"id": str(row["id"]), "prompt": row["prompt"], "answer": str(row["gold"])} for row in rows])
    changes = {
        "include": str(Path(lm_eval.tasks.__file__).parent / TASKS[benchmark].definition),
        "task": f"weakdriven_{benchmark}",
        "dataset_path": "json",
        "dataset_name": None,
        "dataset_kwargs": {"data_files": {"test": str(data)}, "cache_dir": str(out.resolve() / ".cache")},
        "training_split": None,
        "fewshot_split": None,
        "test_split": "test",
        "num_fewshot": 0,
        "doc_to_text": "prompt",
        "generation_kwargs": {"until": stop, "max_gen_toks": budget, "do_sample": False},
    }
    path = out / "task.yaml"
    path.write_text(yaml.safe_dump(changes, sort_keys=False, allow_unicode=True), encoding="utf-8")
    return path


def run_task(model: Any, definition: Path, batch_size: int) -> tuple[dict[str, Any], Rows, Any]:
    """Run a task, and return lm-eval's numbers, its samples, and everything else that it reports."""
    logging.getLogger("lm_eval").setLevel(logging.ERROR)  # it warns of each changed setting
    from lm_eval import simple_evaluate  # pyright: ignore
    from lm_eval.tasks import TaskManager  # pyright: ignore
    from lm_eval.utils import handle_non_serializable  # pyright: ignore

    found: Any = simple_evaluate(
        model=model,
        tasks=[str(definition)],
        task_manager=TaskManager(include_defaults=False),  # the others are thousands of files
        batch_size=batch_size,
        bootstrap_iters=0,
        random_seed=SEED,
        numpy_random_seed=SEED,
        torch_random_seed=SEED,
        fewshot_random_seed=SEED,
    )
    found = json.loads(json.dumps(found, default=handle_non_serializable))
    (name,) = found["results"]
    samples = found.pop("samples")[name]
    return found["results"][name], samples, found


def saved_answers(rows: Rows) -> Any:
    """Make a model for lm-eval that returns our texts, so that its grader can be tested without its generation."""
    from lm_eval.api.model import LM  # pyright: ignore

    texts = {row["prompt"]: row["text"] for row in rows}

    class SavedAnswers(LM):
        def generate_until(self, requests: Any, *_: Any, **__: Any) -> list[str]:
            return [texts[request.args[0]] for request in requests]

        def loglikelihood(self, requests: Any) -> Any:
            raise NotImplementedError

        loglikelihood_rolling = loglikelihood

    return SavedAnswers()


def summary(task: HarnessTask, results: dict[str, Any], samples: Rows, rows: Rows) -> dict[str, Any]:
    """Return lm-eval's metrics, and the ids of rows where its texts or verdicts differ from ours."""
    name, chosen = task.metric.split(",")
    theirs = {sample["doc"]["id"]: sample for sample in samples if sample["filter"] == chosen}
    pairs = [(row, theirs[str(row["id"])]) for row in rows]
    return {
        "items": len(theirs),
        "metric": task.metric,
        "accuracy": results[task.metric],
        "other_text": [row["id"] for row, sample in pairs if row["text"] != sample["resps"][0][0]],
        "other_verdict": [row["id"] for row, sample in pairs if row["correct"] != bool(sample[name])],
    }


if __name__ == "__main__":
    main()
