"""Cost of data selection (WD-DS: entropy scans and draws) compared with the rest of a run."""

from typing import Any

from weakdriven.report.format import WAITING, duration, percent, stage_kind


def selection_cost(stages: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Compare the seconds of WD-DS with those of a run without evaluation and baselines; None if no WD-DS is finished.

    Entropies taken over from another run count in neither.
    """
    done = {stage["name"]: stage["manifest"] for stage in stages if stage["status"] == "done"}
    scans = {name: _scan(name, manifest) for name, manifest in done.items() if name.startswith("entropy/")}
    own = [name for name in done if name not in scans or not scans[name]["reused_from"]]
    seconds = {name: done[name].get("wall_seconds") or 0.0 for name in own}
    selecting = [seconds[name] for name in own if stage_kind(name) == "WD-DS"]
    if not selecting and not scans:
        return None
    training, control = sum(seconds[name] for name in own if _trains(name)), seconds.get("baselines/sft")
    return {
        "seconds": sum(selecting),
        "training_seconds": training,
        "share": sum(selecting) / training if training else None,
        "unfinished": any(_trains(stage["name"]) and stage["status"] in WAITING for stage in stages),
        "control_seconds": control,
        "control_share": sum(selecting) / control if control else None,
        "scans": list(scans.values()),
    }


def cost_words(cost: dict[str, Any]) -> str:
    so_far = " so far" if cost["unfinished"] else ""
    words = f"Data selection (WD-DS: the models' entropies and the draw) took {duration(cost['seconds'])}{so_far}"
    if cost["share"] is not None:
        whole = f"{duration(cost['training_seconds'])} of this run without evaluation and baselines"
        words += f", {percent(cost['share'])} of the {whole}"
    words += "."
    if cost["control_share"] is not None:
        share, control = percent(cost["control_share"]), duration(cost["control_seconds"])
        words += f" The SFT control took {control}; WD-DS took {share} of that."
    if any(scan["reused_from"] for scan in cost["scans"]):
        words += " Entropies taken over from another run are not counted."
    return words


def _scan(name: str, manifest: dict[str, Any]) -> dict[str, Any]:
    counters, seconds = manifest.get("counters", {}), manifest.get("wall_seconds")
    tokens, reused = counters.get("tokens_read"), counters.get("reused_from")
    return {
        "model": name.removeprefix("entropy/"),
        "seconds": seconds,
        "tokens_read": tokens,
        "tokens_per_second": tokens / seconds if tokens and seconds and not reused else None,
        "reused_from": reused,
    }


def _trains(name: str) -> bool:
    return not name.startswith(
        ("eval/", "validation", "baselines/", "rollouts/", "verified/", "pairs/", "hints/", "targets/")
    )
