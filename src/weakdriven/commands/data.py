"""`weakdriven data`: look at a data source before anything is trained on it, or make one out of raw corpora."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table

from weakdriven.commands.common import Debug, Quiet, here, quieten_libraries
from weakdriven.errors import UserError

data_app = typer.Typer(
    help="Training data: weakdriven data show SOURCE, weakdriven data build math|code|logic SOURCE --output DIR.",
    no_args_is_help=True,
)
CHEAP = 256 << 20
"""Bytes of a file whose rows are counted just to show their number."""


def teacher_option(help: str, **limits: Any) -> Any:
    return typer.Option(help=help, rich_help_panel="Teacher", **limits)


@data_app.command("show")
def data_show(
    source: Annotated[
        str,
        typer.Argument(
            help="A JSONL, JSON or Parquet file, a Hub dataset (owner/name or owner/name:configuration), "
            "embedded:arithmetic."
        ),
    ],
    model: Annotated[str, typer.Option(help="Whose tokenizer and chat template to use.")] = "embedded:base",
    style: Annotated[
        Literal["tagged", "tag-free", "plain"], typer.Option(help="System prompt, as data.style.")
    ] = "tagged",
    domain: Annotated[
        Literal["math", "code", "logic"], typer.Option(help="Of rows that name none, as data.domain.")
    ] = "math",
    rows: Annotated[int, typer.Option(min=0, help="How many rows to show.")] = 3,
    max_length: Annotated[int, typer.Option(min=8, help="As data.max_length.")] = 4096,
    split: Annotated[str, typer.Option(help="Split of a Hub dataset.")] = "train",
    chat_template: Annotated[str | None, typer.Option(help="For a tokenizer that has none: file, or `gemma`.")] = None,
    trust_remote_code: Annotated[bool, typer.Option(help="Run code that comes with the tokenizer.")] = False,
    debug: Debug = False,
) -> None:
    """Print the layout of a source and some rows as a model would learn them: the text in colour is learned."""
    quieten_libraries()
    from weakdriven.data.prompts import Renderer, give_chat_template
    from weakdriven.data.rows.files import find_file
    from weakdriven.data.rows.sources import EMBEDDED, open_source
    from weakdriven.data.show import print_source
    from weakdriven.models.load import load_tokenizer, locate_model

    opened = open_source(source, split, domain=domain, empty_completions="drop")
    tokenizer = load_tokenizer(locate_model(model), trust_remote_code=trust_remote_code)
    give_chat_template(tokenizer, chat_template, model, setting="--chat-template")
    renderer = Renderer(tokenizer, domain, style)
    renderer.check()
    file = None if source == EMBEDDED else find_file(source)
    cheap = file is None or file.suffix == ".parquet" or file.stat().st_size <= CHEAP
    count = opened.count() if cheap else None
    if print_source(opened, renderer, Console(), rows=rows, max_length=max_length, count=count).stopped:
        raise typer.Exit(2)


@data_app.command("build")
def data_build(
    domain: Annotated[Literal["math", "code", "logic"], typer.Argument(help="What the rows are verified as.")],
    sources: Annotated[list[str], typer.Argument(help="Raw files or Hub datasets; of logic, LogiQA 2.0 and ReClor.")],
    output: Annotated[Path, typer.Option(help="Folder for the result; run again with it to go on.", callback=here)],
    style: Annotated[
        Literal["tagged", "tag-free", "plain"], typer.Option(help="How completions are to be written, as data.style.")
    ] = "tagged",
    benchmarks: Annotated[
        str, typer.Option(help="Rows that overlap with these are left out: names with commas between, all, or none.")
    ] = "all",
    data_dir: Annotated[str | None, typer.Option(help="Folder with the benchmarks' files; unset: the Hub.")] = None,
    ngram_share: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Share of an item's runs of words that is overlap; unset: any, of logic 0.2."),
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Rows verified at once; unset: one a processor.")] = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds for one comparison or one program.")] = 10.0,
    max_characters: Annotated[int | None, typer.Option(min=1, help="Longer rows are left out.")] = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Rows with more tokens of --tokenizer are left out, as data.max_length.")
    ] = None,
    tokenizer: Annotated[str | None, typer.Option(help="Model whose tokens --max-tokens counts.")] = None,
    chat_template: Annotated[str | None, typer.Option(help="For a tokenizer that has none: file, or `gemma`.")] = None,
    split: Annotated[str, typer.Option(help="Split of a Hub dataset.")] = "train",
    limit: Annotated[int | None, typer.Option(min=1, help="First rows of each source only.")] = None,
    code_python: Annotated[str | None, typer.Option(help="Python whose packages programs may import.")] = None,
    unsafe: Annotated[bool, typer.Option("--unsafe", help="Run programs even where they cannot be isolated.")] = False,
    teacher: Annotated[
        str | None,
        teacher_option("Writes the completions: model folder, Hub id, or with --url a name on that server."),
    ] = None,
    url: Annotated[str | None, teacher_option("A server with the OpenAI chat API; its key is $OPENAI_API_KEY.")] = None,
    samples: Annotated[int, teacher_option("Most tries for each problem.", min=1)] = 4,
    keep: Annotated[int, teacher_option("Right and different completions kept of each problem.", min=1)] = 1,
    temperature: Annotated[float, teacher_option("0 is greedy.", min=0)] = 0.7,
    top_p: Annotated[float, teacher_option("Probability that is drawn from.", min=0.01, max=1)] = 0.95,
    max_new_tokens: Annotated[int, teacher_option("Longer completions are cut, and dropped.", min=1)] = 4096,
    max_prompt_tokens: Annotated[int, teacher_option("Problems with longer prompts are dropped.", min=1)] = 4096,
    seed: Annotated[int, teacher_option("Of all samples.")] = 42,
    precision: Annotated[Literal["bf16", "fp32"], teacher_option("Of the weights and the arithmetic.")] = "bf16",
    attention: Annotated[str | None, teacher_option("Attention implementation of transformers.")] = None,
    batch_size: Annotated[int | None, teacher_option("Completions written together; unset: what fits.", min=1)] = None,
    serve: Annotated[str | None, teacher_option("Python of an environment with vLLM: serve the teacher.")] = None,
    teacher_template: Annotated[str | None, teacher_option("Chat template if it has none: file, or `gemma`.")] = None,
    trust_remote_code: Annotated[bool, teacher_option("Run code that comes with the checkpoint.")] = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Keep rows that are verified, in no benchmark and not repeated; funnel.json says what became of the others."""
    quieten_libraries()
    from weakdriven.build.build import Build, build
    from weakdriven.build.distil import Teacher
    from weakdriven.config.recipe import EngineSettings
    from weakdriven.eval.graders.candidates import Checks
    from weakdriven.eval.target import Subject
    from weakdriven.runs.progress import choose_progress

    if (url or serve) and not teacher:
        raise UserError("--url and --serve need --teacher: the name of the model that writes the completions.")
    if url and serve:
        raise UserError("--url names a running server and --serve starts one; give one of them.")
    writer = None
    if teacher:
        subject = Subject(teacher, style, teacher_template, precision, attention, trust_remote_code, url, seed=seed)
        engine = EngineSettings(engine="vllm" if serve else "transformers", vllm_python=serve, batch_size=batch_size)
        tries = {"samples": samples, "keep": keep, "temperature": temperature, "top_p": top_p}
        lengths = {"max_new_tokens": max_new_tokens, "max_prompt_tokens": max_prompt_tokens}
        writer = Teacher(subject, engine, **tries, **lengths)
    settings = Build(
        domain,
        tuple(sources),
        split=split,
        style=style,
        benchmarks=asked_benchmarks(benchmarks),
        data_dir=data_dir,
        ngram_share=ngram_share,
        max_characters=max_characters,
        max_tokens=max_tokens,
        tokenizer=tokenizer,
        chat_template=chat_template,
        limit=limit,
        checks=Checks(workers, timeout, unsafe, code_python),
        teacher=writer,
    )
    console = Console()
    funnel = build(settings, output, choose_progress(console, quiet=quiet))
    print_funnel(funnel, console)
    console.print(f"{output / settings.result}", markup=False, highlight=False, soft_wrap=True)


def asked_benchmarks(names: str) -> tuple[str, ...]:
    """Names out of a command line; `all` are those that a file or the Hub holds."""
    from weakdriven.build.build import ALL_BENCHMARKS
    from weakdriven.eval.benchmarks import BENCHMARKS, unknown_benchmark

    if names in ("all", "none"):
        return ALL_BENCHMARKS if names == "all" else ()
    asked = tuple(dict.fromkeys(name.strip() for name in names.split(",") if name.strip()))
    if not asked:
        raise UserError("--benchmarks is empty; give names with commas between, all, or none.")
    for name in asked:
        if name not in BENCHMARKS:
            raise unknown_benchmark(name)
    return asked


def print_funnel(funnel: dict[str, Any], console: Console) -> None:
    table = Table("", "rows", "share", box=None)
    for name, rows in [
        ("in", funnel["in"]),
        *((f"- {reason}", one["rows"]) for reason, one in funnel["dropped"].items()),
        ("kept", funnel["kept"]),
    ]:
        table.add_row(name, f"{rows:,}", f"{100 * rows / max(funnel['in'], 1):.1f}%")
    console.print(table)
    if tried := funnel.get("completions"):
        console.print(f"The teacher wrote {tried['in']:,} completions, {tried['kept']:,} of which are kept.")
