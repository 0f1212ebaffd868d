"""Copies a run to an address: s3://, gs:// or anything else that fsspec can write to.

The run works in a local folder, because it renames and locks files, which object stores cannot do. Each finished stage
is copied to the address with its manifest last, so a stage there is complete or absent. A run on another machine
fetches the stages whose keys it needs, checks every file and continues. Checkpoints stay in the local folder.
"""

import json
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from weakdriven.data.rows.remote import DRIVERS, cache_folder, open_system, reason
from weakdriven.errors import UserError, is_disk_full
from weakdriven.runs.directory import RUN_FILE, put_in_place, refuse_other_owner, work_folder
from weakdriven.runs.files import PART, digest, file_digest, link, sync, sync_tree, write_json
from weakdriven.runs.manifest import CARD, MANIFEST, Inventory, damage, files_of, key_and_files, refuse_damage
from weakdriven.runs.redact import without_login
from weakdriven.runs.signals import stop_here
from weakdriven.runs.stage import Planned

WAITS = (1.0, 5.0, 25.0)
"""Seconds before each retry."""
LASTING = (FileNotFoundError, PermissionError, NotImplementedError)
"""Errors that a retry cannot fix."""
BUCKETS = {scheme for scheme in DRIVERS if scheme not in ("sftp", "ssh")}
"""Stores without folders, where creating a folder could create a bucket."""


class Unreached(UserError):
    """The address could not be read or written."""


def default_folder(address: str) -> Path:
    """Return a folder in the user's cache, named after the address without its login.

    >>> default_folder("s3://me:pass@bucket/demo").name == default_folder("s3://me:other@bucket/demo/").name
    True
    """
    plain = without_login(address).rstrip("/")
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", plain)[-80:].strip("-.")
    return cache_folder().parent / "runs" / f"{name}-{digest(plain)[:8]}"


@dataclass
class RemoteCopy:
    """The copy of one run at an address; only the main process uses it."""

    address: str
    root: Path
    note: Callable[[str], None] = lambda text: None
    stages: list[str] = field(default_factory=list)
    """Finished stages of this run, in order."""
    manifests: dict[str, bytes | None] = field(default_factory=dict)
    """Each stage's manifest at the address."""
    sent: dict[str, str] = field(default_factory=dict)
    """Hashes of copied files that no manifest lists and that may change later, such as the report."""

    @property
    def shown(self) -> str:
        return without_login(self.address).rstrip("/")

    def open(self, recipe_name: str) -> None:
        """Raise an error, before anything is computed, if the address belongs to another run or cannot be written."""
        self.system, self.place = open_system(self.address, instead="give a directory as --output")
        with self._explained("cannot be read"):
            owner = self._read(RUN_FILE)
            if owner is None and self._holds_files():
                raise UserError(f"{self.shown} holds files but no run of weakdriven; give an empty or new address.")
        if owner is not None:
            refuse_other_owner(owner, self.shown, recipe_name)
            write_json(self.root / RUN_FILE, json.loads(owner))
        with self._explained("cannot be written"):
            self._put_if_new(RUN_FILE)
        self.note(f"working in {self.root}, copying to {self.shown}")

    def bring(self, planned: Sequence[Planned]) -> list[str]:
        """Fetch the planned stages that the address has; return their names.

        Prefer our own remote copy over sibling runs, because its later stages were made from it. Files that a sibling
        run also has are linked instead of fetched.
        """
        brought = []
        for entry in planned:
            with self._explained("cannot be read"):
                manifest = self.manifest(entry.name) if entry.reason else None
                if manifest is None:
                    continue
                key, files = key_and_files(manifest)
                if files is None:
                    raise self._damaged(entry.name, f"{MANIFEST} is damaged: its key or list of files cannot be read")
                if key == entry.key:
                    self._bring(entry.name, manifest, files, entry.taken)
                    brought.append(entry.name)
        return brought

    def send(self, stage: str) -> None:
        """Copy a finished stage, and any earlier one that failed to copy; a failure does not stop the run."""
        self.stages.append(stage)
        try:
            self._send_missing()
        except Unreached as error:
            self.note(f"{error} The run continues and will copy it later.")

    def finish(self) -> None:
        """Copy everything that is missing or has changed, and the report."""
        try:
            self._send_missing()
        except Unreached as error:
            raise UserError(
                f"{error} The run is finished and complete in {self.root}; run the same command again to copy what "
                "is missing."
            ) from None

    def _send_missing(self) -> None:
        for stage in self.stages:
            with self._explained(f"could not store {stage}"):
                self._send(stage)
        with self._explained("could not store the report and the recipe"):
            for path in sorted(self.root.iterdir()):
                if path.is_file() and path.suffix != PART:
                    self._put_if_new(path.name)

    def _send(self, stage: str) -> None:
        folder = self.root / stage
        manifest, old = (folder / MANIFEST).read_bytes(), self.manifest(stage)
        if manifest != old:
            refuse_damage(folder)
            files = key_and_files(manifest)[1]
            if files is None:
                raise UserError(
                    f"{folder / MANIFEST} is of an older version and lists no files, so a copy cannot be checked; "
                    "give a directory as --output, or delete the folder to compute it again."
                )
            if old is not None:
                self._remove(stage, old)
            for name in files:
                stop_here()
                self._put(f"{stage}/{name}")
        if (folder / CARD).is_file():
            self._put_if_new(f"{stage}/{CARD}")
        if manifest != old:
            self._put(f"{stage}/{MANIFEST}")
            self.manifests[stage] = manifest

    def _remove(self, stage: str, old: bytes) -> None:
        """Remove an older result, manifest first, so that a mixture of old and new never looks complete."""
        for name in (MANIFEST, CARD, *(key_and_files(old)[1] or {})):
            with suppress(FileNotFoundError):
                self._retry(self.system.rm_file, self._at(f"{stage}/{name}"))
        self.sent.pop(f"{stage}/{CARD}", None)
        self.manifests[stage] = None

    def _bring(self, stage: str, manifest: bytes, files: Inventory, near: Path | None) -> None:
        home = work_folder(self.root, stage)
        out = home / "out"
        theirs = files_of(near) if near else {}
        alike = {name for name, fact in files.items() if theirs.get(name) == fact}
        spared = f" ({len(alike)} of {len(files)} files linked from {near})" if alike else ""
        self.note(f"{stage}: fetched from {self.shown}{spared}")
        shutil.rmtree(out, ignore_errors=True)
        for name in (*files, CARD):
            stop_here()
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            if near and name in alike and _link_file(near, out, name, files):
                continue
            with suppress(FileNotFoundError):  # the card is optional; the next check reports any other missing file
                self._retry(self.system.get_file, self._at(f"{stage}/{name}"), str(out / name))
        if found := damage(out, files, contents=True):
            raise self._damaged(stage, found.removeprefix(f"{out}/"))
        sync_tree(out)  # the manifest vouches for the rest, so it comes last
        (out / MANIFEST).write_bytes(manifest)
        sync(out / MANIFEST)
        put_in_place(home, self.root / stage)

    def _damaged(self, stage: str, found: str) -> UserError:
        there = f"{self.shown}/{stage}"
        return UserError(f"{there}/{found}. Restore it from a copy, or delete {there} to compute it again.")

    def manifest(self, stage: str) -> bytes | None:
        """Return a stage's manifest at the address, or None."""
        if stage not in self.manifests:
            with self._explained("cannot be read"):
                self.manifests[stage] = self._read(f"{stage}/{MANIFEST}")
        return self.manifests[stage]

    def _read(self, name: str) -> bytes | None:
        try:
            return self._retry(self.system.cat_file, self._at(name))
        except FileNotFoundError:
            return None

    def _holds_files(self) -> bool:
        try:
            found = self._retry(self.system.ls, self.place, False)
        except FileNotFoundError:
            return False
        return any(path.rstrip("/") != self.place.rstrip("/") for path in found)  # some stores list the folder itself

    def _put_if_new(self, name: str) -> None:
        content = file_digest(self.root / name)
        if self.sent.get(name) != content:
            self._put(name)
            self.sent[name] = content

    def _put(self, name: str) -> None:
        source, target = self.root / name, self._at(name)

        def copy() -> None:
            if self.address.partition("://")[0].lower() not in BUCKETS:
                self.system.makedirs(target.rpartition("/")[0], exist_ok=True)
            self.system.put_file(str(source), target)
            there, here = self.system.info(target)["size"], source.stat().st_size
            if there != here:
                raise ConnectionError(f"{there:,} of {here:,} bytes of {name} arrived")

        self._retry(copy)

    def _at(self, name: str) -> str:
        return f"{self.place.rstrip('/')}/{name}"

    def _retry(self, work: Callable[..., Any], *arguments: Any) -> Any:
        for wait in WAITS:
            try:
                return work(*arguments)
            except LASTING:
                raise
            except Exception:  # each driver has its own errors of network, service and login
                time.sleep(wait)
        return work(*arguments)

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        """Turn any error into one sentence without the secrets of the address."""
        try:
            yield
        except UserError:
            raise
        except Exception as error:
            advice = "free some space" if is_disk_full(error) else "check the address, the network and the login"
            raise Unreached(f"{self.shown} {what} ({reason(self.address, error)}); {advice}.") from None


def _link_file(near: Path, out: Path, name: str, files: Inventory) -> bool:
    """Link one file of another run's stage if it is intact; that run may remove it meanwhile."""
    with suppress(FileNotFoundError):
        if not damage(near, {name: files[name]}, contents=True):
            link(str(near / name), str(out / name))
            return True
    return False
