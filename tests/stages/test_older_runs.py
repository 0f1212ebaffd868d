"""A run directory made before the package was rebuilt: every finished stage is recognised, none is computed again."""

import tarfile
from pathlib import Path

from small_runs import Recorder
from weakdriven.config.file import load_recipe
from weakdriven.pipeline.run import run_recipe

OLD_RUN = Path(__file__).with_name("run_of_0.1.0.tar.gz")
OVERRIDES = [
    "lora.rank=1",
    "data.limit=16",
    "eval.limit=4",
    "eval.max_new_tokens=8",
    "baselines=[sft_restart]",
    "sft.epochs=1",
    "joint.learning_rate=2e-3",
    *(f"{phase}.{name}=8" for phase in ("sft", "joint") for name in ("batch_size", "micro_batch_size")),
]


def test_a_run_of_an_older_version_is_recognised_stage_by_stage(tmp_path):
    with tarfile.open(OLD_RUN) as archive:
        archive.extractall(tmp_path, filter="data")
    recorder = Recorder()
    run_recipe(load_recipe("demo", OVERRIDES), tmp_path, recorder)
    assert recorder.ran == {}
    assert len(recorder.skipped) == 11 and {"data", "sft", "round-1/strong"} < set(recorder.skipped)
