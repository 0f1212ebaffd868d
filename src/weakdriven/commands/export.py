"""`weakdriven export`: what a run trained, in other forms; `weakdriven run --push-to-hub` uses the first of them."""

from typing import Annotated, Literal

import typer

from weakdriven.commands.common import Debug, RunArgument, quieten_libraries
from weakdriven.errors import UserError

export_app = typer.Typer(help="Save what a run trained in other forms.", no_args_is_help=True)
PushToHub = Annotated[str | None, typer.Option(metavar="OWNER/NAME", help="Push the result to the Hub at the end.")]
Private = Annotated[bool, typer.Option("--private", help="Make the new Hub repository a private one.")]

NewFolder = Annotated[str, typer.Option("--output", help="New folder.")]
Dtype = Annotated[
    Literal["bf16", "fp32"] | None, typer.Option(help="Saved precision; unset: bf16 if the models are, else fp32.")
]


@export_app.command("hub")
def export_hub(
    run: RunArgument,
    repo: Annotated[str, typer.Argument(metavar="OWNER/NAME", help="Model on the Hub; created if it does not exist.")],
    private: Private = False,
    debug: Debug = False,
) -> None:
    """Push the model that a run trained to the Hugging Face Hub: weights, tokenizer, card."""
    quieten_libraries()
    from weakdriven.report.card.hub import push_run

    print(f"Pushed: {push_run(run, repo, private=private)}")


def refuse_push(repo: str | None, *, private: bool) -> None:
    """Check the push before the hours of a run, not after them."""
    if repo:
        from weakdriven.report.card.hub import check_push

        check_push(repo)
    elif private:
        raise UserError("--private does nothing without --push-to-hub; add --push-to-hub OWNER/NAME or leave it out.")


@export_app.command("mix")
def export_mix(
    strong: Annotated[str, typer.Argument(help="Model or adapter folder; or a run, a round of it, a checkpoint.")],
    weak: Annotated[str | None, typer.Argument(help="Model or adapter folder, if the first is one.")] = None,
    output: Annotated[str | None, typer.Option(help="New folder; of a run, unset: RUN/round-N/mixture.")] = None,
    strong_weight: Annotated[
        float | None, typer.Option(help="Strong weight, at least 0; unset: the run's, else 0.5.")
    ] = None,
    dtype: Dtype = None,
    debug: Debug = False,
) -> None:
    """Save weak and strong as one model that generates from their mixed logits, to evaluate the mixture."""
    quieten_libraries()
    from weakdriven.wmss.export import export_mix as export

    mix = export(strong, weak, output=output, strong_weight=strong_weight, dtype=dtype)
    print(f"strong  {mix.strong.folder}\nweak    {mix.weak.folder}")
    print(f"weight  {mix.strong_weight:g} on the strong logits, from {mix.weight_from}")
    print(f"saved   {mix.out}, which loads as one model with mixed logits")


@export_app.command("merge")
def export_merge(
    adapter: Annotated[str, typer.Argument(help="Folder of an adapter, such as RUN/round-1/strong.")],
    output: NewFolder,
    dtype: Dtype = None,
    debug: Debug = False,
) -> None:
    """Add an adapter to its base and save the sum as an ordinary model."""
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
    """Add its base's vision tower to a trained Gemma-3, for servers that load the multimodal form only."""
    quieten_libraries()
    from weakdriven.models.gemma3.wrap import wrap_text_model

    text, vision = wrap_text_model(trained, base, output)
    print(f"text    {text} weights of {trained}")
    print(f"vision  {vision} weights of {base}, unchanged")
    print(f"saved   {output}, read back and found equal")
