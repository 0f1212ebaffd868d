"""Examples of another source for a diagnosis, such as held-out ones, tokenized like the run's own examples."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from weakdriven.config.recipe import DataSettings
from weakdriven.data.prompts import Renderer
from weakdriven.data.rows.sources import open_source
from weakdriven.data.tokenize import VERSION as TOKENS_VERSION
from weakdriven.data.tokenize import load_tokens, write_tokens
from weakdriven.diagnose.forward_pass import Sample, draw_sample
from weakdriven.diagnose.run_models import RunModels
from weakdriven.errors import UserError
from weakdriven.runs.directory import EXAMPLES, TOKENS
from weakdriven.runs.files import append_jsonl, digest


@dataclass(frozen=True)
class OtherRows:
    """A source, and the settings that decide the tokens of its rows."""

    path: str
    split: str
    renderer: Renderer
    data: DataSettings

    def settings(self) -> dict[str, Any]:
        settings = self.data.model_dump(mode="json", include={"domain", "style", "max_length"})
        settings |= {"system_prompt": self.data.system_prompt} if self.data.system_prompt else {}
        settings |= {"rows": self.path, "split": self.split, "tokens": TOKENS_VERSION}
        return settings | {"chat_template": digest(self.renderer.tokenizer.chat_template)}

    def draw(
        self, count: int, seed: int, work: Path, out: Path, on_row: Callable[[int, int], None]
    ) -> tuple[Sample, list[str]]:
        """Draw some examples, with a note on dropped rows; write all examples to `out` for the report."""
        length = self.data.max_length
        try:
            source = open_source(self.path, self.split, domain=self.data.domain, empty_completions="drop")
            total = source.count()
            with TemporaryDirectory(dir=work) as folder:
                counters = write_tokens(
                    source,
                    self.renderer,
                    Path(folder) / TOKENS,
                    max_length=length,
                    long_prompts="drop",
                    on_row=lambda done: on_row(done, total),
                    on_kept=lambda kept: append_jsonl(out / EXAMPLES, (one.as_row() for one in kept)),
                )
                sample = draw_sample(load_tokens(Path(folder) / TOKENS), count, seed)  # stays mapped without the file
        except (OSError, ValueError, KeyError) as error:
            raise UserError(f"--rows {self.path}: {error}") from error
        long, empty = counters["dropped_long_prompts"], counters["dropped_empty_completions"]
        note = (
            f"Of {total:,} rows of {self.path}, {long:,} were dropped because the prompt has data.max_length={length} "
            f"tokens or more, and {empty:,} because the completion is empty."
        )
        return sample, [note] if long or empty else []


def find_other_rows(path: str, split: str, found: RunModels) -> OtherRows:
    """Open the rows in the form that the run's models were trained with."""
    if not path:
        raise UserError("--rows is empty; give a file or a dataset, or omit it to measure training examples.")
    if not (renderer := found.renderer()):
        raise UserError(f"--rows {path}: no model of {found.root} has a tokenizer for them.")
    return OtherRows(path, split, renderer, found.recipe.data)
