"""Raw rows of a data file or a Hub dataset, one at a time, so that a file may be larger than the memory."""

import codecs
import gzip
import io
import json
import zlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import IO, Any

from weakdriven.data.demo import demo_rows
from weakdriven.data.rows.json_array import BLOCK, JsonArray, NotJson
from weakdriven.data.rows.remote import fetch, is_remote
from weakdriven.errors import UserError
from weakdriven.runs.redact import without_login

EMBEDDED = "embedded:arithmetic"
ENDINGS = (".jsonl", ".json", ".gz", ".zst", ".parquet")
Row = dict[str, Any]


def read_rows(path: str, split: str = "train") -> Iterator[Row]:
    """Rows of the embedded set, a JSONL, JSON or Parquet file (the first two also .gz or .zst), or a Hub dataset."""
    for row in read_each(path, split):
        if isinstance(row, UserError):
            raise row
        yield row


def read_each(path: str, split: str = "train", *, start: int = 0) -> Iterator[Row | UserError]:
    """As `read_rows` after skipping `start` rows; a line that is not a row gives its error instead of raising it.

    Skipped lines of JSONL are not parsed. An error of the whole file (a damaged archive) is raised.
    """
    file = None if path == EMBEDDED else find_file(path)
    if file is None:
        rows = demo_rows(split) if path == EMBEDDED else hub_rows(path, split)
        yield from islice(rows, start, None)
    elif file.suffix == ".parquet" or _inner_ending(file) == ".json":
        yield from islice(_parquet(file) if file.suffix == ".parquet" else _json_array(file), start, None)
    else:
        lines = ((number, line) for number, line in enumerate(_lines(file), start=1) if line.strip())
        for number, line in islice(lines, start, None):
            try:
                yield _json_line(line, file, number)
            except UserError as error:
                yield error


def count_rows(path: str, split: str = "train") -> int:
    """Number of rows that `read_rows` gives, without parsing lines of JSONL."""
    if path == EMBEDDED:
        return len(demo_rows(split))
    if (file := find_file(path)) is None:
        return len(hub_rows(path, split))
    if file.suffix == ".parquet":
        return _parquet_file(file).metadata.num_rows
    if _inner_ending(file) == ".json":
        return sum(1 for _ in _json_array(file))
    return sum(1 for line in _lines(file) if line.strip())


def find_file(path: str) -> Path | None:
    """The file of a source, downloaded if it is an address; None for a dataset on the Hub."""
    if is_remote(path):
        file = fetch(path)
        if file.suffix not in ENDINGS:
            raise UserError(f"{without_login(path)} has an unknown ending; expected one of {', '.join(ENDINGS)}.")
        return file
    try:
        file = Path(path).expanduser()
    except RuntimeError:  # ~name of an unknown user
        raise UserError(f"{path}: there is no such data file.") from None
    if file.is_file():
        return file
    if file.is_dir():
        raise UserError(f"{path} is a folder; name a file in it.")
    if file.exists() or path.startswith((".", "/", "~")) or file.suffix in ENDINGS:
        raise UserError(
            f"{path}: there is no such data file; a relative path is looked up from where the command is started."
        )
    return None


def split_config(path: str) -> tuple[str, str | None]:
    """Name and configuration of a Hub dataset.

    >>> split_config("openai/gsm8k:main"), split_config("openai/gsm8k")
    (('openai/gsm8k', 'main'), ('openai/gsm8k', None))
    """
    name, _, config = path.partition(":")
    return name, config or None


def hub_rows(path: str, split: str) -> Any:
    """A split of a Hub dataset (of one configuration, if it has several), mapped from disk."""
    from datasets import load_dataset

    name, config = split_config(path)
    try:
        return load_dataset(name, config, split=split)
    except Exception as error:
        if isinstance(error, ValueError):
            refuse_configuration(name, config)
        raise UserError(f"{path} is neither a readable data file nor a dataset on the Hub ({error}).") from error


def refuse_configuration(name: str, config: str | None) -> None:
    """Raise an error that lists the configurations, if `datasets` knows them and this is none of them."""
    from datasets import get_dataset_config_names, get_dataset_default_config_name

    try:
        there = get_dataset_config_names(name)
        known = (config or get_dataset_default_config_name(name)) in there
    except Exception:
        return
    if not known:
        found = f"has no configuration {config!r}" if config else "has several configurations and none is named"
        raise UserError(f"{name} {found}; there are {', '.join(there)}. Write one after a colon: {name}:{there[0]}.")


def _inner_ending(file: Path) -> str:
    return Path(file.stem).suffix if file.suffix in (".gz", ".zst") else file.suffix


def _open(file: Path) -> IO[bytes]:
    if file.suffix == ".gz":
        return gzip.open(file, "rb")  # pyright: ignore[reportReturnType]
    if file.suffix == ".zst":
        import pyarrow as pa

        return io.BufferedReader(pa.input_stream(str(file), compression="zstd"))  # pyright: ignore
    return file.open("rb")


def _lines(file: Path) -> Iterator[bytes]:
    number = 0
    try:
        with _open(file) as lines:
            for number, line in enumerate(lines, start=1):
                yield line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
    except (OSError, zlib.error, EOFError) as error:
        raise UserError(f"{file}, line {number + 1} cannot be read: {error}.") from None


def _json_line(line: bytes, file: Path, number: int) -> Row:
    try:
        return _object(json.loads(line.decode()), file, number)
    except UnicodeDecodeError as error:
        raise UserError(f"{file}, line {number} cannot be read: {error}; save the file as UTF-8.") from None
    except (ValueError, RecursionError) as error:
        expected = f"; expected JSON lines, or a file that ends in {', '.join(ENDINGS)}"
        unknown = "" if file.suffix in ENDINGS else expected
        raise UserError(f"{file}, line {number} is not JSON: {error}{unknown}.") from None


def _json_array(file: Path) -> Iterator[Row]:
    try:
        with _open(file) as data:
            blocks = codecs.iterdecode(iter(lambda: data.read(BLOCK), b""), "utf-8-sig")
            for number, row in enumerate(JsonArray(blocks), start=1):
                yield _object(row, file, number)
    except UnicodeDecodeError as error:
        raise UserError(f"{file} cannot be read as JSON: {error}; save the file as UTF-8.") from None
    except (NotJson, OSError, zlib.error, EOFError) as error:
        raise UserError(f"{file} cannot be read as JSON: {error}.") from None


def _object(row: Any, file: Path, number: int) -> Row:
    if not isinstance(row, dict):
        raise UserError(f"{file}, row {number}: expected an object with named fields, found {type(row).__name__}.")
    return row


def _parquet_file(file: Path) -> Any:
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(file)
    except (OSError, ValueError) as error:  # Arrow's own errors are ValueErrors
        raise UserError(f"{file} cannot be read as Parquet: {error}.") from None


def _parquet(file: Path) -> Iterator[Row]:
    try:
        for batch in _parquet_file(file).iter_batches(batch_size=256):
            yield from batch.to_pylist()
    except (OSError, ValueError) as error:
        raise UserError(f"{file} cannot be read as Parquet: {error}.") from None
