"""Push the result of a run to the Hugging Face Hub: weights, tokenizer and card, and nothing else."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from huggingface_hub import CommitOperationAdd, HfApi
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalTokenNotFoundError, OfflineModeIsEnabled
from huggingface_hub.utils import validate_repo_id

from weakdriven.errors import UserError
from weakdriven.report.card.card import ADAPTER_FILE, CARD, read_settings, result_stages, write_cards
from weakdriven.report.card.front_matter import from_hub, hub_id, public_name
from weakdriven.report.read import load_run
from weakdriven.runs.directory import RUN_FILE
from weakdriven.runs.manifest import MANIFEST

PUSHED = (".safetensors", ".json", ".jinja", ".model", ".txt", ".py")
"""Suffixes of the files of a model and its tokenizer."""
NOT_PUSHED = (MANIFEST, "trainer_state.json")
LOGIN = "log in with hf auth login, or set HF_TOKEN to a token with write access (huggingface.co/settings/tokens)"


def check_push(repo: str) -> None:
    """Raise an error before training if the Hub does not accept the name or the login has no write access."""
    try:
        validate_repo_id(repo)
        if repo.count("/") != 1:
            raise HFValidationError("it has no owner")
    except HFValidationError as error:
        why = str(error).split(":")[0].rstrip(".")
        raise UserError(f"{repo!r} is not a valid model name on the Hub ({why}); give OWNER/NAME.") from None
    try:
        who: dict[str, Any] = HfApi().whoami()
    except OfflineModeIsEnabled:
        raise UserError("HF_HUB_OFFLINE is set, so nothing can be pushed; unset it, or push later.") from None
    except (LocalTokenNotFoundError, HfHubHTTPError) as error:
        raise UserError(f"The Hub accepts no login of this machine ({_reason(error)}); {LOGIN}.") from None
    except Exception as error:  # any of httpx's errors
        raise UserError(f"The Hub cannot be reached ({_reason(error)}); check the network, or push later.") from None
    role, name = who.get("auth", {}).get("accessToken", {}).get("role"), who["name"]
    owners = [name, *(one["name"] for one in who.get("orgs", []))]
    if role == "read":
        raise UserError(f"The token of {name} is read-only; {LOGIN}.")
    if role == "write" and repo.split("/")[0] not in owners:  # fine-grained tokens do not list their rights
        raise UserError(f"{name} cannot write to {repo}; choose an owner of {', '.join(owners)}.")


def push_run(run: Path, repo: str, *, private: bool = False) -> str:
    """Push the result of a run to the Hub in one commit; return its address there.

    Args:
        private: Make a new repository private; an existing one keeps its visibility.
    """
    folder, base = find_result(run)
    check_push(repo)
    try:
        api = HfApi()
        address = api.create_repo(repo, private=private or None, exist_ok=True)
        commit = [CommitOperationAdd(name, content) for name, content in files_to_push(folder, base)]
        api.create_commit(repo, commit, commit_message=f"{public_name(str(run.resolve()))}: trained with weakdriven")
    except Exception as error:
        raise UserError(
            f"The model is safe in {folder}, but it could not be pushed ({_reason(error)}). Try again with: "
            f"weakdriven export hub {run} {repo}{' --private' if private else ''}"
        ) from error
    return str(address)


def find_result(run: Path) -> tuple[Path, str | None]:
    """Find a run's model (merged if there is one), write its card, and find the Hub id of its base model."""
    if not (run / RUN_FILE).is_file():
        raise UserError(f"{run} is not a run directory: it has no {RUN_FILE}; give the folder that a run wrote.")
    data = load_run(run)
    stages = result_stages(data)
    if not stages:
        raise UserError(f"{run} has no trained model yet; run its recipe to the end first.")
    write_cards(run)
    return run / stages[-1], hub_id(read_settings(data).get("model"), from_hub(data))


def files_to_push(folder: Path, base: str | None) -> Iterator[tuple[str, str | bytes]]:
    """Yield each file's name on the Hub, with the local path or the content."""
    for path in sorted(folder.iterdir()):
        if not path.is_file() or path.name in NOT_PUSHED or not path.name.endswith((*PUSHED, CARD)):
            continue
        changed = _without_paths(path, base) if path.suffix == ".json" else None
        yield path.name, changed or str(path)


def _without_paths(path: Path, base: str | None) -> bytes | None:
    """Return a configuration file without local paths; None if it has none."""
    if path.name not in (ADAPTER_FILE, "config.json", "tokenizer_config.json"):
        return None
    values = json.loads(path.read_text(encoding="utf-8"))
    named = {key: one for key, one in values.items() if key.endswith("name_or_path") and isinstance(one, str)}
    # `training/lora.py` writes a local base model by its absolute path, so any other name is a Hub id
    own = {key: public_name(one, [one] if path.name == ADAPTER_FILE else ()) for key, one in named.items()}
    paths = {key: base or own[key] for key, one in named.items() if own[key] != one}
    return json.dumps(values | paths, indent=2, ensure_ascii=False).encode() + b"\n" if paths else None


def _reason(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".") if lines else type(error).__name__
