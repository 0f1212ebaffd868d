"""Convert rows as the benchmarks' authors publish them to our fields.

Missing ids, letters and test styles are filled in, other fields are renamed, and nothing is checked: a missing field
stays missing, and `load_items` reports it.
"""

import ast
import base64
import builtins
import io
import json
import pickle
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from weakdriven.data.questions import LETTERS
from weakdriven.data.rows.files import read_rows
from weakdriven.data.rows.hub import network_fault
from weakdriven.errors import UserError

Row = dict[str, Any]


@dataclass(frozen=True)
class Hub:
    """A split of a dataset on the Hub, or one of its files if `datasets` cannot load the whole."""

    id: str
    split: str = "test"
    config: str | None = None
    file: str | None = None


def read_hub(hub: Hub) -> Iterator[Row]:
    """Read the rows of a dataset on the Hub, in its own fields."""
    import datasets
    import huggingface_hub

    fault = network_fault()
    try:
        if hub.file is not None:
            rows = read_rows(huggingface_hub.hf_hub_download(hub.id, hub.file, repo_type="dataset"))
        else:
            rows = datasets.load_dataset(hub.id, hub.config, split=hub.split)
    except Exception as error:
        reason = fault or (str(error) or type(error).__name__).splitlines()[0]
        raise UserError(
            f"{hub.id} cannot be read from the Hub ({reason}). Without the Hub, put the benchmark's file into a folder "
            "and name it with --data-dir, or in a recipe eval.data_dir; docs/reference/benchmarks.md lists its fields."
        ) from error
    yield from rows  # pyright: ignore[reportReturnType]


MARKS = {
    **{"aime2025": "problem", "amc23": "url", "aqua": "correct", "math500": "problem", "mawps": "original_text"},
    **{"svamp": "Body", "humaneval_plus": "task_id", "mbpp_plus": "test_list", "bigcodebench": "complete_prompt"},
    **{"livecodebench": "question_content", "logiqa2": "text", "reclor": "answers"},
}
"""For each benchmark, a field that only its published layout has."""


def our_fields(name: str, row: Row, number: int) -> Row:
    """Return a row in our fields; it may have ours or its authors'. `number` counts from 1."""
    published = MARKS[name] in row if name in MARKS else name == "gsm8k" and "id" not in row
    return converted(name, row, number) if published else row


def converted(name: str, row: Row, number: int) -> Row:
    """Convert a published row to our fields; the comments list the fields of each layout."""
    match name:
        case "gsm8k":  # question, and answer, whose last line is "#### 18"
            _, mark, answer = str(row.get("answer", "")).rpartition("####")
            final = answer.strip().replace(",", "") if mark else None
            return {"id": f"gsm8k-test-{number - 1:04d}", "question": row.get("question"), "answer": final}
        case "math500":  # problem, answer, subject, level, unique_id ("test/algebra/12.json")
            title = re.sub(r"^test/|\.json$", "", str(row.get("unique_id", "")))
            return {**row, "id": f"math500-{title}" if title else None, "question": row.get("problem")}
        case "aime2025":  # problem, answer, id
            return {"id": f"aime2025-{row.get('id', number)}", "question": row["problem"], **pick(row, "answer")}
        case "amc23":  # question, answer, id, url; the Qwen2.5-Math file: problem, and answer as 27.0
            question, answer = row.get("question", row.get("problem")), plain_number(row.get("answer"))
            return {"id": f"amc23-{row.get('id', number)}", "question": question, "answer": answer}
        case "aqua":  # question, options ("A)21"), correct (a letter), rationale
            options = [re.sub(r"^\s*[A-E]\s*\)\s*", "", str(option)) for option in row.get("options") or []]
            common = {**pick(row, "question"), "options": options, "answer": row["correct"]}
            return {"id": f"aqua-test-{number - 1:03d}", **common}
        case "mawps":  # MWPToolkit's dataset/mawps/testset.json: id, original_text, equation, ans (9.0 or "9")
            answer = plain_number(row.get("ans"))
            return {"id": f"mawps-test-{row.get('id', number)}", "question": row["original_text"], "answer": answer}
        case "svamp":  # Body, Question, Answer ("145.0"), ID ("chal-777")
            body, ask = str(row["Body"]).strip(), str(row.get("Question", "")).strip()
            question = f"{body} {ask}" if body.endswith((".", "!", "?", ",")) else f"{body}. {ask}"
            answer = plain_number(row.get("Answer"))
            return {"id": f"svamp-{row.get('ID', number)}", "question": question if ask else None, "answer": answer}
        case "humaneval_plus":  # task_id, prompt, entry_point, test (defines `check`)
            return {"id": row["task_id"], **pick(row, "prompt", "entry_point", "test"), "test_style": "check"}
        case "mbpp_plus":  # task_id (a number), prompt (English), code, test_list, test (a whole script)
            example, task = next(iter(row["test_list"] or []), ""), str(row.get("prompt", "")).strip()
            prompt = f'"""\n{task}\n{example.strip()}\n"""\n' if row.get("prompt") else None
            tests = {"entry_point": called_function(example, str(row.get("code", ""))), **pick(row, "test")}
            return {"id": f"Mbpp/{row.get('task_id', number)}", "prompt": prompt, **tests, "test_style": "asserts"}
        case "bigcodebench":  # task_id, complete_prompt, instruct_prompt, entry_point, test, libs (a text)
            libraries = row.get("libs")
            libraries = ast.literal_eval(libraries) if isinstance(libraries, str) else libraries
            common = {**pick(row, "instruct_prompt", "entry_point", "test"), "libs": libraries}
            return {"id": row.get("task_id"), "prompt": row["complete_prompt"], **common, "test_style": "unittest"}
        case "livecodebench":  # tests as JSON text, the private ones packed; metadata holds func_name
            tests = json.loads(row.get("public_test_cases") or "[]")
            tests += unpack_tests(row.get("private_test_cases") or "[]")
            entry_point = json.loads(row.get("metadata") or "{}").get("func_name")
            common = {**pick(row, "starter_code", "difficulty"), "tests": tests, "func_name": entry_point}
            return {"id": row.get("question_id"), "question": row["question_content"], **common}
        case "logiqa2":  # as its authors publish it: id (not unique), text, question, options, answer (0 to 3)
            identity = f"logiqa2-test-{number - 1:04d}" + (f"-{row['id']}" if row.get("id") is not None else "")
            common = {**pick(row, "question", "options"), "answer": letter_of(row.get("answer"))}
            return {"id": identity, "context": row["text"], **common}
        case _:  # ReClor's val.json: id_string, context, question, answers, label (0 to 3)
            common = {**pick(row, "context", "question"), "answer": letter_of(row.get("label"))}
            return {"id": row.get("id_string"), "options": row["answers"], **common}


def pick(row: Row, *fields: str) -> Row:
    return {field: row.get(field) for field in fields}


def plain_number(value: Any) -> str | None:
    """Remove `.0` from a whole number; keep other texts."""
    return None if value is None else re.sub(r"^(-?\d+)\.0$", r"\1", str(value).strip())


def letter_of(number: Any) -> Any:
    """Return the letter of an option's number; keep anything else, so that `load_items` reports it."""
    is_option = isinstance(number, int) and not isinstance(number, bool) and 0 <= number < len(LETTERS)
    return LETTERS[number] if is_option else number


def called_function(example: str, code: str) -> str:
    """Find the function of `code` that an assert calls; else the first called function that is not built in."""
    try:
        defined = {node.name for node in ast.parse(code).body if isinstance(node, ast.FunctionDef)}
        calls = [node.func for node in ast.walk(ast.parse(example.strip())) if isinstance(node, ast.Call)]
    except (SyntaxError, ValueError):
        return ""
    names = [call.id for call in calls if isinstance(call, ast.Name)]
    known = [name for name in names if name in defined]
    return next(iter(known or [name for name in names if not hasattr(builtins, name)]), "")


class _TextOnly(pickle.Unpickler):
    """Unpickles text only. A pickle can call any function that it names, and a pickled text names none."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        raise pickle.UnpicklingError(f"the tests name {module_name}.{global_name}, but they may only contain text")


def unpack_tests(packed: str) -> list[Row]:
    """Decode LiveCodeBench's private tests: JSON, or JSON in a pickle in zlib in base64."""
    if packed.lstrip().startswith("["):
        return json.loads(packed)
    try:
        return json.loads(_TextOnly(io.BytesIO(zlib.decompress(base64.b64decode(packed)))).load())
    except (zlib.error, pickle.UnpicklingError, EOFError, IndexError, KeyError, TypeError) as error:
        raise ValueError(f"the private tests cannot be unpacked ({error})") from error
