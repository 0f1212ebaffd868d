"""Datasets on the Hub, each read at a single commit in a run, so that the rows match their key.

A dataset is written `owner/name`, `owner/name:configuration`, and either with `@revision`: a branch, tag or commit.
"""

import logging
import re
import socket
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from weakdriven.errors import UserError

logger = logging.getLogger(__name__)
COMMIT = re.compile(r"[0-9a-f]{40}")
UNKNOWN = "cached"
"""Written into keys by earlier versions in place of a commit when the Hub did not respond."""
PATIENCE = 60
"""Seconds for the Hub to return a commit."""
_COMMITS: dict[str, str] = {}
"""Commit of each dataset that this process has made a key of."""


def name_parts(path: str) -> tuple[str, str, str | None]:
    """Split a dataset's path into name, configuration and revision.

    >>> name_parts("openai/gsm8k:main@v1"), name_parts("openai/gsm8k")
    (('openai/gsm8k', 'main', 'v1'), ('openai/gsm8k', '', None))
    """
    path, _, revision = path.partition("@")
    name, _, config = path.partition(":")
    return name, config, revision or None


@cache
def network_fault() -> str:
    """Return why the Hub cannot be reached, or nothing; called before each access.

    If the Hub's name cannot be resolved, use only the local caches from then on, because the Hub's client would try
    every request six times. If the network is slow or fails otherwise, these retries remain.
    """
    from huggingface_hub import constants

    host = urlsplit(constants.ENDPOINT).hostname
    if constants.HF_HUB_OFFLINE or getproxies():  # a proxy resolves names itself
        return ""
    try:
        socket.getaddrinfo(host, None)
    except OSError as error:
        constants.HF_HUB_OFFLINE = True
        return f"{host} cannot be reached: {error.strerror or error}"
    return ""


def commit_of(path: str) -> str:
    """Return the commit at which this process reads a dataset, looked up once."""
    if path not in _COMMITS:
        _COMMITS[path] = find_commit(path)
    return _COMMITS[path]


def use_commit(path: str, commit: str) -> None:
    _COMMITS[path] = commit


def find_commit(path: str, known: str | None = None) -> str:
    """Find the newest commit of a dataset, or of its revision.

    If the Hub does not respond, use the `known` commit, else (without a revision) that of the local cache.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError, RevisionNotFoundError

    name, config, revision = name_parts(path)
    if known == UNKNOWN:  # the newest commit may have other rows
        return known
    if revision and COMMIT.fullmatch(revision):
        return revision
    fault = network_fault()
    try:
        return str(HfApi().dataset_info(name, timeout=PATIENCE, revision=revision).sha)
    except Exception as error:
        reason = fault or f"{type(error).__name__}: {error}".splitlines()[0]
        if commit := known or (None if revision else _cached_commit(name, config)):
            where = "of the earlier run" if known else "in the local cache"
            logger.warning(
                "The Hub did not return the newest commit of %s (%s); using %s %s.", name, reason, commit, where
            )
            return commit
        if isinstance(error, (RepositoryNotFoundError, RevisionNotFoundError, HFValidationError)):
            raise _no_rows(path, error) from error
        raise UserError(
            f"{path} is not a local data file, and the Hub did not return the newest commit of that dataset "
            f"({reason}); the local cache has none. Run the same command again when the Hub responds, or give a data "
            "file."
        ) from error


def hub_rows(path: str, split: str) -> Any:
    """Open a split of a Hub dataset at the commit of its key, mapped from disk."""
    from datasets import load_dataset

    name, config, _ = name_parts(path)
    commit = commit_of(path)
    if commit == UNKNOWN:
        raise UserError(
            f"The rows of {path} were read by an earlier version that did not record their commit, so they cannot be "
            "read again. Delete the folder data of the run to read the newest ones; the stages after it run again."
        )
    revision = commit if COMMIT.fullmatch(commit) else None
    try:
        rows: Any = load_dataset(name, config or None, split=split, revision=revision)
    except Exception as error:
        raise _no_rows(path, error) from error
    # if the Hub does not respond, `datasets` reads the newest commit in its cache
    found = {Path(file["filename"]).parent.name for file in getattr(rows, "cache_files", [])}
    if revision and (others := [one for one in found - {commit} if COMMIT.fullmatch(one)]):
        raise UserError(
            f"{path} cannot be read at commit {commit}, because the Hub does not respond and the local cache has "
            f"{others[0]}; run the same command again when the Hub responds."
        )
    return rows


def _cached_commit(name: str, config: str) -> str | None:
    from datasets import load_dataset_builder

    try:
        return load_dataset_builder(name, config or None).hash
    except Exception:
        return None


def _no_rows(path: str, error: Exception) -> UserError:
    return UserError(
        f"{path} is neither a readable data file nor a dataset on the Hub ({error}). Write a branch, tag or "
        "commit after an @, as in owner/name@main, and a dataset's configuration after a colon: "
        f"{name_parts(path)[0]}:configuration."
    )
