"""Cross-check: our prompts through lm-evaluation-harness's own generation loop, answer extraction and metric.

Only what decides the question is ours: items, rendered prompts, stop strings and token budget. Left out are tasks that
lm-eval scores by log-likelihood (logiqa2), those whose metric comes from the Hub (humaneval_plus, mbpp_plus), and
minerva_math500, which needs antlr4 4.11: with that version math-verify reads percentages differently.
"""

import json
import logging
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
import yaml
from transformers import AutoTokenizer, GenerationConfig

from weakdriven.errors import UserError
from weakdriven.runs.files import write_json, write_jsonl

LM_EVAL = "0.4.13"
INSTALL = 'pip install "weakdriven[harness]"'
SEED = 1234


@dataclass(frozen=True)
class HarnessTask:
    definition: str
    """lm-eval's own task file, in its folder of tasks."""
    metric: str
    """The one of its metrics that reads an answer where our prompts ask for it, as `metric,filter`."""


# GSM8K's strict-match wants "#### 18"; flexible-extract takes the last number. lm-eval's hendrycks_math500 compares all
# that stands between the first and the last dollar sign; aime25 has the same comparison after reading the last \boxed.
HARNESS_TASKS = {
    "aime2025": HarnessTask("aime/aime25.yaml", "exact_match,none"),
    "gsm8k": HarnessTask("gsm8k/gsm8k.yaml", "exact_match,flexible-extract"),
    "math500": HarnessTask("aime/aime25.yaml", "exact_match,none"),
}


def cross_check(
    model_folder: str | Path,
    benchmark: str,
    rows: Sequence[dict[str, Any]],
    *,
    max_new_tokens: int,
    stop: Sequence[str],
    batch_size: int,
    dtype: torch.dtype,
    out: Path,
    adapter: str | Path | None = None,
    trust_remote_code: bool = False,
) -> dict[str, Any]:
    """lm-eval's greedy completions and scores for rows that we have evaluated or are about to.

    `out` gets `samples.jsonl` and `results.json` as lm-eval gives them, and `task.yaml` with `rows.jsonl`, the task as
    it was run. In bf16 a text depends on what else is in its batch, so texts that differ are no fault by themselves;
    where they are the same and the verdicts are not, the graders differ.

    Args:
        rows: Each with `id`, `prompt` (rendered, with all special tokens) and `gold`; the rows of our `samples.jsonl`
            also hold `text` and `correct`, which are then compared one by one.
        stop: Texts that end a completion, such as the end-of-turn token; the tokenizer's EOS is always one.
        adapter: Folder of a PEFT adapter over the model.

    Returns:
        `metrics` has all of lm-eval's, and `accuracy` is the comparable one, named by `metric`, over `items` rows.
        `other_text` and `other_verdict` list the ids where ours differ, and `accuracy_of_our_texts` is what lm-eval
        makes of our texts; None where the rows hold none of ours.
    """
    task = harness_task(benchmark)
    refuse_missing_lm_eval()
    if not rows:
        raise UserError(f"{benchmark}: there are no rows to cross-check.")
    out.mkdir(parents=True, exist_ok=True)
    definition = write_task(task, benchmark, rows, stop=stop, max_new_tokens=max_new_tokens, out=out)
    model = load_harness_model(
        model_folder,
        stop=stop,
        batch_size=batch_size,
        dtype=dtype,
        adapter=adapter,
        trust_remote_code=trust_remote_code,
    )
    refuse_other_prompts(model, model_folder, rows, max_new_tokens, trust_remote_code=trust_remote_code)
    results, samples, found = run_task(model, definition, batch_size)
    write_jsonl(out / "samples.jsonl", samples)
    write_json(out / "results.json", found)
    graded = None
    if all("text" in row for row in rows):
        graded = run_task(saved_answers(rows), definition, batch_size)[0][task.metric]
    shutil.rmtree(cache_folder(out), ignore_errors=True)
    return summary(task, results, samples, rows) | {"accuracy_of_our_texts": graded}


def run_task(model: Any, definition: Path, batch_size: int) -> tuple[dict[str, Any], list[dict[str, Any]], Any]:
    """lm-eval's numbers, its samples, and all else that it says."""
    logging.getLogger("lm_eval").setLevel(logging.ERROR)  # it warns of each setting that is ours
    from lm_eval import simple_evaluate  # pyright: ignore[reportMissingImports]
    from lm_eval.tasks import TaskManager  # pyright: ignore[reportMissingImports]
    from lm_eval.utils import handle_non_serializable  # pyright: ignore[reportMissingImports]

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


def saved_answers(rows: Sequence[dict[str, Any]]) -> Any:
    """A model for lm-eval that answers with our texts, so that its grader is tried apart from its generation."""
    from lm_eval.api.model import LM  # pyright: ignore[reportMissingImports]

    texts = {row["prompt"]: row["text"] for row in rows}

    class SavedAnswers(LM):
        def generate_until(self, requests: Any, *_: Any, **__: Any) -> list[str]:
            return [texts[request.args[0]] for request in requests]

        def loglikelihood(self, requests: Any) -> Any:
            raise NotImplementedError

        loglikelihood_rolling = loglikelihood

    return SavedAnswers()


def harness_task(benchmark: str) -> HarnessTask:
    if benchmark not in HARNESS_TASKS:
        raise UserError(
            f"{benchmark} cannot be cross-checked with lm-eval; the benchmarks that can are {', '.join(HARNESS_TASKS)}."
        )
    return HARNESS_TASKS[benchmark]


def refuse_missing_lm_eval() -> None:
    try:
        installed = version("lm_eval")
    except PackageNotFoundError:
        raise UserError(f"The cross-check needs lm-evaluation-harness; install it with: {INSTALL}") from None
    if installed != LM_EVAL:
        raise UserError(
            f"lm-eval {installed} is installed, but the cross-check is tested with {LM_EVAL}; use: {INSTALL}"
        )


def cache_folder(out: Path) -> Path:
    return out.resolve() / ".cache"


def write_task(
    task: HarnessTask,
    benchmark: str,
    rows: Sequence[dict[str, Any]],
    *,
    stop: Sequence[str],
    max_new_tokens: int,
    out: Path,
) -> Path:
    """lm-eval's task file with our rows, prompts and endings in place of its own; metric and filters stay."""
    import lm_eval.tasks  # pyright: ignore[reportMissingImports]

    data = out.resolve() / "rows.jsonl"
    write_jsonl(data, [{"id": str(row["id"]), "prompt": row["prompt"], "answer": str(row["gold"])} for row in rows])
    changes = {
        "include": str(Path(lm_eval.tasks.__file__).parent / task.definition),
        "task": f"weakdriven_{benchmark}",
        "dataset_path": "json",
        "dataset_name": None,
        "dataset_kwargs": {"data_files": {"test": str(data)}, "cache_dir": str(cache_folder(out))},
        "training_split": None,
        "fewshot_split": None,
        "test_split": "test",
        "num_fewshot": 0,
        "doc_to_text": "prompt",
        "generation_kwargs": {"until": list(stop), "max_gen_toks": max_new_tokens, "do_sample": False},
    }
    path = out / "task.yaml"
    path.write_text(yaml.safe_dump(changes, sort_keys=False, allow_unicode=True), encoding="utf-8")
    return path


def load_harness_model(
    folder: str | Path,
    *,
    stop: Sequence[str],
    batch_size: int,
    dtype: torch.dtype,
    adapter: str | Path | None = None,
    trust_remote_code: bool = False,
) -> Any:
    """lm-eval's `hf` model, without additions of its own to the prompt and without the checkpoint's own decoding."""
    from lm_eval.models.huggingface import HFLM  # pyright: ignore[reportMissingImports]

    model = HFLM(
        pretrained=str(Path(folder).resolve()),  # an absolute path is never taken for a name on the Hub
        peft=None if adapter is None else str(Path(adapter).resolve()),
        device="cuda" if torch.cuda.is_available() else "cpu",
        dtype=dtype,
        batch_size=batch_size,
        add_bos_token=False,
        trust_remote_code=trust_remote_code,
    )
    # A row of a batch ends at EOS tokens only: past a stop string it goes on until all rows have ended, and as special
    # tokens are not decoded, the text would hold what came after.
    tokenizer: Any = model.tokenizer
    ends = [tokenizer.encode(text, add_special_tokens=False) for text in stop]
    ids = sorted({ids[0] for ids in ends if len(ids) == 1} | {tokenizer.eos_token_id})
    # penalties or beams in the checkpoint's own config would make "greedy" mean something else for each model
    model.model.generation_config = GenerationConfig(do_sample=False, eos_token_id=ids)
    return model


def refuse_other_prompts(
    model: Any, folder: str | Path, rows: Sequence[dict[str, Any]], max_new_tokens: int, *, trust_remote_code: bool
) -> None:
    """lm-eval must see the tokens that our own generation sees; it cuts long prompts with no more than a warning."""
    tokenizer: Any = AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)
    longest = 0
    for row in rows:
        ours = tokenizer(row["prompt"], add_special_tokens=False)["input_ids"]
        theirs = model.tok_batch_encode([row["prompt"]])[0][0].tolist()
        if ours != theirs:
            raise UserError(
                f"lm-eval reads the prompt of {row['id']} as {len(theirs)} tokens that are not our {len(ours)}; "
                f"the tokenizer of {folder} cannot be cross-checked."
            )
        longest = max(longest, len(ours))
    if longest + max_new_tokens > model.max_length:
        raise UserError(
            f"The longest prompt has {longest} tokens, which with {max_new_tokens} new ones is more than the model's "
            f"{model.max_length} positions, and lm-eval would cut it; lower max_new_tokens."
        )


def summary(
    task: HarnessTask, results: dict[str, Any], samples: list[dict[str, Any]], rows: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """lm-eval's metrics, and where its texts and verdicts are not ours."""
    name, chosen = task.metric.split(",")
    theirs = {sample["doc"]["id"]: sample for sample in samples if sample["filter"] == chosen}
    if list(theirs) != [str(row["id"]) for row in rows]:
        raise UserError(f"lm-eval scored {len(theirs)} rows, but there are {len(rows)}; ids must be unique.")

    def differing(field: str, value: Any) -> list[str] | None:
        if not all(field in row for row in rows):
            return None
        return [str(row["id"]) for row in rows if row[field] != value(theirs[str(row["id"])])]

    return {
        "task": task.definition,
        "lm_eval": LM_EVAL,
        "items": len(theirs),
        "metric": task.metric,
        "accuracy": results[task.metric],
        "metrics": {key: value for key, value in results.items() if "," in key and "_stderr" not in key},
        "other_text": differing("text", lambda sample: sample["resps"][0][0]),
        "other_verdict": differing("correct", lambda sample: bool(sample[name])),
    }
