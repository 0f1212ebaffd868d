"""`weakdriven export`: push a trained model to the Hub, or save it in other forms."""

from typing import Annotated, Literal

import typer

from weakdriven.commands.common import Debug, RunArgument, quieten_libraries
from weakdriven.errors import UserError

export_app = typer.Typer(help="Push a trained model to the Hub, or save it in other forms.", no_args_is_help=True)
PushToHub = Annotated[str | None, typer.Option(metavar="OWNER/NAME", help="Push the result to the Hub at the end.")]
Private = Annotated[bool, typer.Option("--private", help="Create the Hub repository as private.")]

NewFolder = Annotated[str, typer.Option("--output", help="New folder.")]
Dtype = Annotated[
    Literal["bf16", "fp32"] | None,
    typer.Option(help="Precision of the saved weights (default: bf16 if the models are bf16, else fp32)."),
]


@export_app.command("hub")
def export_hub(
    run: RunArgument,
    repo: Annotated[str, typer.Argument(metavar="OWNER/NAME", help="Hub repository; created if it does not exist.")],
    private: Private = False,
    debug: Debug = False,
) -> None:
    """Push the model that a run trained to the Hugging Face Hub: weights, tokenizer and model card."""
    quieten_libraries()
    from weakdriven.report.card.hub import push_run

    print(f"Pushed: {push_run(run, repo, private=private)}")


def refuse_push(repo: str | None, *, private: bool) -> None:
    """Check before the run starts that its result can be pushed."""
    if repo:
        from weakdriven.report.card.hub import check_push

        check_push(repo)
    elif private:
        raise UserError("--private needs --push-to-hub OWNER/NAME; add it, or remove --private.")


@export_app.command("mix")
def export_mix(
    strong: Annotated[str, typer.Argument(help="Folder of a run, a round or a checkpoint of a pair; or of a model.")],
    weak: Annotated[str | None, typer.Argument(help="Folder of the weak model, if the first is a model.")] = None,
    output: Annotated[str | None, typer.Option(help="New folder (default for a run: RUN/round-N/mixture).")] = None,
    strong_weight: Annotated[
        float | None, typer.Option(help="Weight of the strong logits, at least 0 (default: the run's, else 0.5).")
    ] = None,
    dtype: Dtype = None,
    debug: Debug = False,
) -> None:
    """Save the weak and the strong model as one model that generates from their mixed logits."""
    quieten_libraries()
    from weakdriven.wmss.export import export_mix as export

    mix = export(strong, weak, output=output, strong_weight=strong_weight, dtype=dtype)
    print(f"strong  {mix.strong.folder}\nweak    {mix.weak.folder}")
    print(f"weight  {mix.strong_weight:g} on the strong logits, from {mix.weight_from}")
    print(f"saved   {mix.out}, which loads as one model")


@export_app.command("merge")
def export_merge(
    adapter: Annotated[str, typer.Argument(help="Folder of an adapter, such as RUN/round-1/strong.")],
    output: NewFolder,
    dtype: Dtype = None,
    debug: Debug = False,
) -> None:
    """Merge an adapter into its base model and save an ordinary model."""
    quieten_libraries()
    from weakdriven.wmss.export import export_merged

    found = export_merged(adapter, output, dtype=dtype)
    print(f"adapter  {found.folder}\nbase     {found.base}\nsaved    {output}")


@export_app.command("vllm")
def export_vllm(
    trained: Annotated[str, typer.Argument(help="Folder of a trained text-only Gemma-3.")],
    base: Annotated[str, typer.Argument(help="Folder or Hub id of the multimodal Gemma-3 it was trained from.")],
    output: NewFolder,
    debug: Debug = False,
) -> None:
    """Add the base model's vision tower to a trained text-only Gemma-3, for servers that need the multimodal form."""
    quieten_libraries()
    from weakdriven.models.gemma3.wrap import wrap_text_model

    text, vision = wrap_text_model(trained, base, output)
    print(f"text    {text} weights of {trained}")
    print(f"vision  {vision} weights of {base}, unchanged")
    print(f"saved   {output}, read back and found equal")
