"""The identity of a data source's rows, for stage keys."""

from huggingface_hub import HfApi

from weakdriven.data.demo import VERSION as PROBLEMS_VERSION
from weakdriven.data.rows.files import EMBEDDED, find_file, split_config
from weakdriven.errors import UserError
from weakdriven.runs.files import file_digest


def data_key(path: str, split: str) -> str:
    """Identity of a source's rows: a file's content, the generator's version, or a Hub dataset's commit."""
    if path == EMBEDDED:
        return f"{path}@{PROBLEMS_VERSION}/{split}"
    if file := find_file(path):
        try:
            return file_digest(file)
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error.strerror}.") from error
    try:
        commit = HfApi().dataset_info(split_config(path)[0]).sha
    except Exception:  # offline: the cached copy is used; a wrong name fails when it is loaded
        commit = "cached"
    return f"{path}@{commit}/{split}"
