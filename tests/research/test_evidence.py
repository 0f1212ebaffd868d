"""The page of the study shows what its result files say, and a result file says what its runs did."""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest
from evidence_cases import result

from research.evidence.__main__ import main, refuse_loss
from research.evidence.collect import collect, unpacked, without_paths
from research.evidence.comparisons import QUOTED, Numbers
from research.evidence.diagnosed import BRANCHES, diagnosed, read_diagnosed
from research.evidence.figures import digest, figures, mechanism_figure, write_drawn
from research.evidence.page import (
    BLOCK,
    PAGES,
    all_tables,
    diagnosed_tables,
    read_all,
    score_tables,
    with_tables,
    written,
)
from research.evidence.results import STUDENTS, trained_methods, verdicts
from run_files import put
from weakdriven.eval.statistics import score_of
from weakdriven.runs.files import read_json

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs/evidence"


@pytest.fixture(scope="module")
def study():
    return read_all(FOLDER)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_a_page_holds_what_its_results_say(study, page):
    text = page.read_text(encoding="utf-8")
    assert written(text, *study) == text, "run `python -m research.evidence write`"


def test_every_table_is_on_a_page(study):
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert {match["name"] for match in BLOCK.finditer(text)} >= set(study[1])


@pytest.mark.parametrize("page", PAGES[1:], ids=lambda path: path.stem)
def test_no_interval_is_typed_in(page):
    text = QUOTED.sub("", BLOCK.sub("", page.read_text(encoding="utf-8")))
    assert not re.search(r"\[[-+]?\d+\.\d+, ", text)


def test_the_first_page_is_one_page():
    text = re.sub(r"<!--.*?-->|\]\([^)]*\)", "", (FOLDER / "README.md").read_text(encoding="utf-8"))
    assert len(re.findall(r"[^\s|]*\w[^\s|]*", text)) <= 600


def test_the_figures_are_drawn_from_the_results(study):
    drawn = figures(study[0])
    assert {path.name for path in (FOLDER / "figures").glob("*")} == {f"{figure.name}.svg" for figure in drawn}
    for figure in drawn:
        text = (FOLDER / f"figures/{figure.name}.svg").read_text(encoding="utf-8")
        assert text.endswith(digest(figure)), "run `python -m research.evidence write`"


def test_a_figure_of_other_data_is_drawn_again(tmp_path):
    old, new = (mechanism_figure({"weak branch": gap, "mixture": 2.0}) for gap in (1.0, 1.5))
    (path,) = write_drawn([old], tmp_path)
    before = path.read_text(encoding="utf-8")
    assert ">1.0<" in before and before.endswith(digest(old)) != before.endswith(digest(new))
    path.write_text(before.replace(">1.0<", ">9.9<"), encoding="utf-8")
    write_drawn([old], tmp_path)
    assert ">9.9<" in path.read_text(encoding="utf-8"), "the same data is not drawn again"
    write_drawn([new], tmp_path)
    assert ">1.5<" in path.read_text(encoding="utf-8") and [*tmp_path.iterdir()] == [path]


def listed(**comparisons):
    """Numbers of two students; on Gemma, WMSS gains more in a second session, and so does its restart."""
    gains = zip(STUDENTS[:2], (0.3, 0.2), strict=True)
    results = [result(student, wmss=gain, sft_active=0.1) for student, gain in gains]
    results.append(result(STUDENTS[0], study="saturated", seeds=(43, 44, 45), wmss=0.5))
    return Numbers(results, [], comparisons)


def test_a_comparison_is_paired_by_student_seed_and_item():
    numbers = listed(
        joint={"of": "core/wmss", "to": "core/sft_active"},
        one={"of": {STUDENTS[1]: "core/wmss"}, "to": {STUDENTS[1]: "core/sft_active"}},
        part={"of": "core/wmss", "without": ["svamp"]},
        later={"of": "saturated/wmss", "to": "core/wmss", "own": True},
    )
    wmss, active = (numbers.trained[STUDENTS[0], f"core/{name}"] for name in ("wmss", "sft_active"))
    gains = [wmss.scores[name].mean() - active.scores[name].mean() for name in ("gsm8k", "svamp")]
    whole = numbers.difference("joint")
    assert [*whole.by_student] == [*STUDENTS[:2]]
    assert score_of(whole.by_student[STUDENTS[0]]) == pytest.approx(sum(gains) / 2)
    assert [*numbers.difference("one").by_student] == [STUDENTS[1]]
    assert [*numbers.difference("part").by_student[STUDENTS[0]]] == ["gsm8k"]
    (later,) = numbers.difference("later").by_student.values()
    again = numbers.trained[STUDENTS[0], "saturated/wmss"]
    expected = again.differences["gsm8k"][:2] - wmss.differences["gsm8k"][1:]
    assert later["gsm8k"].tolist() == expected.tolist(), "seeds 43 and 44, which both have"


def test_a_page_quotes_numbers_by_name():
    numbers = listed(joint={"of": "core/wmss", "to": "core/sft_active"})
    page = "a 9.9 [8.0, 9.9]<!--joint-->, 1<!--core/sft_active of core/wmss--> and 0<!--score core/m1 gemma-3-270m-->."
    text = numbers.quoted(page)
    whole = numbers.difference("core/wmss")
    share = 100 * numbers.difference("core/sft_active").mean / whole.mean
    assert text.startswith(f"a {numbers.difference('joint').shown()}<!--joint-->, {share:.0f}%<!--")
    assert text.endswith("<!--score core/m1 gemma-3-270m-->.") and numbers.quoted(text) == text
    assert numbers.text("core/wmss gemma-3-270m") == whole.shown("gemma-3-270m") != whole.shown()
    assert 0 <= float(numbers.text("core/wmss p")) <= 1 and whole.shown(STUDENTS[2]) == "–"
    with pytest.raises(SystemExit, match="cor/wmss: no comparison"):
        numbers.quoted("1<!--cor/wmss-->")


def test_result_files_hold_no_path_of_a_machine():
    for path in [*(FOLDER / "results").glob("*.json"), *(FOLDER / "diagnosed").glob("*.json")]:
        text = path.read_text(encoding="utf-8")
        assert without_paths(json.loads(text)) == json.loads(text), path.name


def test_a_table_that_was_edited_by_hand_is_found():
    tables = all_tables([result("gemma-3-270m", wmss=0.2)], [])
    page = "a\n<!-- table: core -->\n<!-- end of table -->\nb\n"
    written = with_tables(page, tables)
    assert written.startswith("a\n") and written.endswith("\nb\n") and "| wmss | 3 |" in written
    edited = written.replace("| wmss | 3 |", "| wmss | 5 |")
    assert with_tables(edited, tables) == written != edited


def test_a_page_with_an_unknown_table_raises_an_error():
    with pytest.raises(SystemExit, match="asks for a table cor; there are verdicts"):
        with_tables("<!-- table: cor -->\n<!-- end of table -->", all_tables([], []))


def test_a_gain_on_all_students_is_called_one_and_a_loss_a_loss():
    five = range(42, 47)
    results = [result(student, seeds=five, wmss=0.3, wdjt_only=0.0) for student in STUDENTS]
    first, second, *others = verdicts(trained_methods(results))
    assert first.word == "gain" and first.difference > 0.1 and first.chance < 0.01
    assert second.word == "no difference" and second.difference == 0  # the very answers of the reference
    assert {one.word for one in others} == {"not run"}
    for one in results:
        one["methods"]["sft_restart"], one["methods"]["wmss"] = one["methods"]["wmss"], one["methods"]["sft_restart"]
    assert verdicts(trained_methods(results))[0].word == "loss"


def test_one_student_decides_nothing():
    found = trained_methods([result("gemma-3-270m", wmss=0.3)])
    assert verdicts(found)[0].word == "open: 1 of 3 students"


def test_fewer_seeds_than_the_protocol_fixes_decide_nothing():
    first, *others = STUDENTS
    results = [result(first, wmss=0.3), *(result(name, seeds=range(42, 47), wmss=0.3) for name in others)]
    assert verdicts(trained_methods(results))[0].word == f"open: 3 of 5 seeds of {first}"


def test_other_seeds_of_a_study_are_added_and_the_same_ones_raise_an_error():
    files = [result("gemma-3-270m", wmss=0.3), result("gemma-3-270m", seeds=(45, 46), wmss=0.3)]
    (both,) = [one for one in trained_methods(files) if one.method == "wmss"]
    assert both.seeds == ["42", "43", "44", "45", "46"] and both.scores["gsm8k"].shape == (5, 40)
    (same,) = [one for one in trained_methods([files[0], files[0]]) if one.method == "wmss"]
    assert same.seeds == ["42", "43", "44"] and same.seconds == 10, "what points of a sweep share counts once"
    with pytest.raises(SystemExit, match="wmss: seed 42 is in two of"):
        trained_methods([files[0], result("gemma-3-270m", wmss=0.9)])


def test_a_reference_of_two_sittings_is_their_mean_seed_by_seed():
    first, second, shared = (result("gemma-3-270m", **{name: 0.3}) for name in ("anchor", "compute", "uniform"))
    shared["methods"] |= {name: second["methods"][name] for name in ("sft_restart", "sft")}  # points of one sweep
    for file, right, seconds in ((first, "f" * 10, 20.0), (second, "0" * 10, 40.0)):
        restart = file["methods"]["sft_restart"]
        restart["cost"] = restart["cost"] | {"seconds": seconds}
        for one in [*restart["seeds"].values(), *file["methods"]["sft"]["seeds"].values()]:
            one["gsm8k"]["right"] = right
    files = [first, second, shared]
    for file in files:
        file["recipe"] = file["recipe"] | {"method": list(file["methods"])[-1]}
    found = {one.method: one for one in trained_methods(files)}
    assert found["sft_restart"].seeds == ["42", "43", "44"] and (found["sft_restart"].scores["gsm8k"] == 0.5).all()
    assert found["sft_restart"].seconds == pytest.approx(30)
    assert found["sft"].seeds == ["42", "43", "44"] and (found["sft"].reference["gsm8k"] == 0.5).all()
    assert found["anchor"].reference["gsm8k"].all() and not found["compute"].reference["gsm8k"].any()


def test_trainings_by_other_recipes_or_on_other_items_are_not_counted_together():
    files = [result("gemma-3-270m", wmss=0.3), result("gemma-3-270m", seeds=(45, 46), wmss=0.3)]
    files[0]["recipe"] = {"seed": 42, "sft": {"epochs": 1, "micro_batch_size": 16, "gradient_checkpointing": False}}
    files[1]["recipe"] = {"seed": 45, "sft": {"epochs": 1, "micro_batch_size": 8, "gradient_checkpointing": True}}
    for file, method in zip(files, ("wmss", "sft_restart"), strict=True):  # as the methods that were asked for decide
        file["recipe"]["method"] = method
    trained_methods(files)
    files[1]["recipe"]["sft"]["epochs"] = 2
    with pytest.raises(SystemExit, match=r"sft.epochs is 1 in gemma-3-270m-core.json and 2 in .* as another --study"):
        trained_methods(files)
    files[1]["recipe"]["sft"]["epochs"] = 1
    files[1]["items"] = {**files[1]["items"], "gsm8k": {"count": 40, "ids": "1"}}
    with pytest.raises(SystemExit, match="have different items"):
        trained_methods(files)


def test_a_result_file_is_not_overwritten_by_other_runs(tmp_path):
    path, old = tmp_path / "x.json", result("gemma-3-270m", seeds=(42, 43), wmss=0.3)
    put(path, old)
    refuse_loss(path, result("gemma-3-270m", seeds=(42, 43, 44), wmss=0.3)["methods"])  # it grew
    for other in (result("gemma-3-270m", seeds=(42,), wmss=0.3), result("gemma-3-270m", seeds=(42, 43), wmss=0.9)):
        with pytest.raises(SystemExit, match="that these runs lack or contradict; collect them with another --part"):
            refuse_loss(path, other["methods"])


def test_a_ratio_of_times_is_of_runs_under_the_same_load():
    files = [result("gemma-3-270m", wmss=0.3), result("gemma-3-270m", seeds=(45, 46), wmss=0.3, wdjt_only=0.1)]
    methods = files[1]["methods"]
    for name, seconds in {"sft": 30.0, "wmss": 60.0, "wdjt_only": 90.0}.items():
        methods[name]["cost"] = methods[name]["cost"] | {"seconds": seconds}
    found = {one.method: one for one in trained_methods(files)}
    assert found["wdjt_only"].over_sft == pytest.approx(3)  # of its own file, where all took three times as long
    assert found["wmss"].seconds == pytest.approx((3 * 10 + 2 * 60) / 5)
    assert found["wmss"].over_sft == pytest.approx((3 * 10 + 2 * 60) / (3 * 10 + 2 * 30))
    del methods["wmss"]["seeds"]["46"]  # a seed without a result does not make the others cheaper
    (fewer,) = [one for one in trained_methods(files) if one.method == "wmss"]
    assert fewer.over_sft == pytest.approx((3 * 10 + 60) / (3 * 10 + 30))


def test_costs_are_counted_in_epochs_of_sft():
    file = result("gemma-3-270m", wmss=0.3, wdjt_only=0.1, wmss_frozen=0.2, dpo=0.1)
    tokens = {"sft_restart": 2e6, "wmss": 2.2e6, "wdjt_only": 3e6, "wmss_frozen": 1.6e6, "dpo": 1.5e6}
    for name, count in tokens.items():
        one = file["methods"][name]
        one["cost"] = one["cost"] | {"trained_tokens": count, "generated_tokens": 9.0 * (name == "dpo")}
    found = {one.method: one.epochs for one in trained_methods([file])}
    assert found["m1"] == 1 and found["sft_restart"] == 2 and found["wdjt_only"] == 3 and found["dpo"] is None
    assert found["wmss"] == pytest.approx(2.2 + 2 / 3), "two scans"
    assert found["wmss_frozen"] == pytest.approx(1.6 + 2 / 3 + 0.2), "and the weak model's forward passes"


def test_what_was_diagnosed_is_kept_without_paths_and_shown(tmp_path, monkeypatch):
    names = ("base", "sft", "baseline-sft_restart", "round-1")
    values = {"nll": 0.5, "entropy": 0.25, "target": 20.0, "background": -5.0, "std": 3.0}
    statistics = {key: {"mean": value, "error": 0.1} for key, value in values.items()}
    facts = {"round": 1, "examples": 8, "tokens": 1000, "seed": 45, "models": {"sft": {"folder": "/a/run/sft"}}}
    models = {name: {"vocabulary": 9, "statistics": statistics} for name in names}
    steps = [{"step": 4 * place} | dict.fromkeys(BRANCHES, 0.1 * place) for place in range(19)]
    run = tmp_path / "diagnostics"
    put(run / "logits.json", {"facts": facts, "models": models})
    put(run / "drift.json", {"steps": {"round-1/strong": steps}})
    put(run / "manifest.json", {"hardware": "1 x GPU", "versions": {"torch": "2", "weakdriven": "/a/b"}})
    kept = diagnosed(tmp_path, "gemma-3-270m")
    assert "/a/" not in json.dumps(kept) and kept["seed"] == 45
    shown = diagnosed_tables([kept])
    assert "| wmss | 0.500 | 0.250 | 20.000 | -5.000 | 3.000 | – | – | – |" in shown and "| sft |" not in shown
    shown_steps = [line.split(" | ")[0].removeprefix("| ") for line in shown.splitlines()[-10:]]
    assert shown_steps == [str(8 * place) for place in range(10)] and shown.endswith(" | 1.800 |")
    for one in models.values():
        one |= {"statistics": statistics | {"top_right": {"mean": 0.9}}, "calibration_error": 0.05}
    put(run / "logits.json", {"facts": facts | {"rows": "/a/held-out.jsonl"}, "models": models})
    command = ["evidence", "diagnosed", str(tmp_path), "--student", "gemma-3-270m", "--study", "sampled"]
    monkeypatch.setattr(sys, "argv", [*command, "--output", str(tmp_path / "kept")])
    main()
    (held_out,) = read_diagnosed(tmp_path / "kept")
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["gemma-3-270m-s45-sampled-held_out.json"]
    shown = diagnosed_tables([held_out])
    assert shown.startswith("**gemma-3-270m, seed 45, `sampled`** (8 held-out rows") and "joint step" not in shown
    assert "| wmss | 0.500 | 0.250 | 20.000 | -5.000 | 3.000 | – | 0.900 | 0.050 |" in shown


@pytest.fixture
def compared(tmp_path):
    """A folder as `weakdriven compare` leaves it."""
    root = tmp_path / "compared"
    right = {"base": [0, 0, 1], "sft": [0, 1, 1], "baseline-sft_restart": [1, 1, 0], "round-1": [1, 1, 1]}
    stages = {"sft_restart": ["sft", "baselines/sft_restart"], "wmss": ["sft", "round-1/strong"]}
    models = {"sft_restart": "baseline-sft_restart", "wmss": "round-1"}
    for seed in (42, 43):
        run, plan = root / f"seed-{seed}", {}
        for name in ("sft", "baselines/sft_restart", "round-1/strong"):
            plan[name] = name
            counters = {"trained_tokens": 100}
            facts = {"stage": name, "key": name, "wall_seconds": 2.0, "peak_memory_bytes": 5, "counters": counters}
            facts["inputs"] = {"data": "data"} | ({"model": "sft"} if name != "sft" else {})
            put(run / name / "manifest.json", facts)
        for model, answers in right.items():
            name = f"eval/{model}/gsm8k"
            plan[name] = name
            facts = {"stage": name, "key": name, "wall_seconds": 3.0, "peak_memory_bytes": 5, "counters": {}}
            put(run / name / "manifest.json", facts)
            rows = [{"id": f"q{i}", "sample": 0, "correct": bool(x)} for i, x in enumerate(answers)]
            put(run / name / "samples.jsonl", rows)
            put(run / name / "scores.json", {"tokens": 90, "cut": 1})
        put(run / "plan.json", plan)
        put(run / "recipe.yaml", f"model: {tmp_path}/gemma\nsft: {{learning_rate: 1.0e-05, epochs: 1}}\n")
    methods = {name: {"model": models[name], "stages": stages[name]} for name in models}
    facts = {"recipe": "x", "seeds": {"42": "seed-42", "43": "seed-43"}, "methods": methods}
    failed = {"dpo": {"42": f"No pairs in {tmp_path}/pairs.jsonl."}}
    put(root / "compare.json", facts | {"failed": failed, "hardware": "one GPU", "jobs": 2, "versions": {"torch": "2"}})
    return root


def test_a_comparison_becomes_one_file_without_paths(compared, tmp_path):
    names = {"wmss": "wmss_annealed"}
    (found,) = collect(compared, study="variants", student="gemma", names=names).values()
    assert list(found["methods"]) == ["base", "m1", "sft_restart", "wmss_annealed"]
    assert found["items"]["gsm8k"]["count"] == 3
    assert unpacked(found["methods"]["wmss_annealed"]["seeds"]["43"]["gsm8k"]["right"], 3).tolist() == [
        1,
        1,
        1,
    ]
    assert found["methods"]["wmss_annealed"]["cost"]["seconds"] == 4.0
    counted = {"seconds": 2.0, "counters": {"trained_tokens": 100}}
    assert found["methods"]["wmss_annealed"]["stages"]["43"] == {"sft": counted, "round-1/strong": counted}
    assert found["recipe"]["model"] == "gemma" and found["failed"]["dpo"]["42"] == "No pairs in pairs.jsonl."
    assert str(tmp_path) not in json.dumps(found)


def test_a_model_that_was_evaluated_by_itself_is_one_more_method(compared, tmp_path, monkeypatch):
    words = [str(compared), "--study", "core", "--student", "gemma", "--results", str(tmp_path / "results")]
    monkeypatch.setattr(sys, "argv", ["evidence", "collect", *words])
    main()
    (file,) = (tmp_path / "results").iterdir()
    before, asked = read_json(file), compared / "seed-43/eval/baseline-sft_restart"
    before["recipe"] |= {"data": {"style": "tag-free"}, "eval": {"max_new_tokens": 512}}
    put(file, before)
    facts = {"execution": {"style": "tag-free"}, "settings": {"max_new_tokens": 512}, "wall_seconds": 3.0}
    put(asked / "gsm8k/manifest.json", facts)
    monkeypatch.setattr(sys, "argv", ["evidence", "also", str(file), "mixture", "wmss", f"43={asked}"])
    main()
    after = read_json(file)
    mixture, wmss = after["methods"].pop("mixture"), before["methods"]["wmss"]
    assert after == before and mixture["cost"] == wmss["cost"] and mixture["stages"] == {"43": wmss["stages"]["43"]}
    assert mixture["like"] == "wmss"
    assert mixture["seeds"] == {"43": before["methods"]["sft_restart"]["seeds"]["43"]}
    with pytest.raises(SystemExit, match="There is a mixture already"):
        main()
    monkeypatch.setattr(sys, "argv", ["evidence", "also", str(file), "more", "wmss", f"43={asked}"])
    put(asked / "gsm8k/samples.jsonl", [{"id": "other", "sample": 0, "correct": True}])
    with pytest.raises(SystemExit, match="gsm8k has other items than the models before it"):
        main()
    put(asked / "gsm8k/manifest.json", facts | {"execution": {"style": "plain"}})
    with pytest.raises(
        SystemExit, match=r"gsm8k was evaluated with \('plain', 512\), the file's models with \('tag-free', 512\)"
    ):
        main()
    monkeypatch.setattr(sys, "argv", ["evidence", "also", str(file), "more", "wmss", f"47={asked}"])
    with pytest.raises(SystemExit, match="There is no wmss of seed 47"):
        main()


def test_several_answers_to_an_item_are_counted_and_compared(compared):
    for seed in (42, 43):
        for model, right in {
            "base": [0, 0, 0],
            "sft": [0, 0, 1],
            "baseline-sft_restart": [4, 0, 0],
            "round-1": [1, 1, 0],
        }.items():
            rows = [{"id": f"q{i}", "sample": n, "correct": n < x} for i, x in enumerate(right) for n in range(4)]
            put(compared / f"seed-{seed}/eval/{model}/gsm8k/samples.jsonl", rows)
        put(compared / f"seed-{seed}/recipe.yaml", "sft: {epochs: 1}\neval: {samples: 4, temperature: 0.6}\n")
    (found,) = collect(compared, study="sampled", student="gemma", names={"wmss": "t0.6"}).values()
    assert found["items"]["gsm8k"]["samples"] == 4
    numbers = Numbers([found | {"file": "x"}], [], {})
    scores = {place: score_of(one.scores) for (_, place), one in numbers.trained.items()}
    assert scores["sampled-t0.6/sft_restart"] == scores["sampled-t0.6-any/sft_restart"] == pytest.approx(1 / 3)
    assert scores["sampled-t0.6/wmss"] == pytest.approx(1 / 6)
    assert scores["sampled-t0.6-any/wmss"] == pytest.approx(2 / 3), "right if any is"
    wmss = numbers.trained["gemma", "sampled-t0.6-any/wmss"]
    assert wmss.against.difference == pytest.approx(1 / 3)
    assert "| wmss | 2 | 66.7 [" in score_tables([*numbers.trained.values()])


def test_a_comparison_that_was_stopped_gives_what_it_has(compared):
    (compared / "compare.json").unlink()
    put(compared / "seed-42/data/manifest.json", {"key": "data", "versions": {"torch": "2"}})
    shutil.rmtree(compared / "seed-43/eval/round-1")
    (found,) = collect(compared, study="core", student="gemma").values()
    assert {name: list(one["seeds"]) for name, one in found["methods"].items()} == {
        **{name: ["42", "43"] for name in ("base", "m1", "sft_restart")},
        "wmss": ["42"],
    }
    assert found["methods"]["wmss"]["cost"]["seconds"] == 4.0 and found["versions"] == {"torch": "2"}
    for seed, gpu in {42: "8 x GPU", 43: "1 x GPU"}.items():
        for path in (compared / f"seed-{seed}").rglob("manifest.json"):
            put(path, json.loads(path.read_text(encoding="utf-8")) | {"hardware": gpu})
    (found,) = collect(compared, study="core", student="gemma").values()
    assert found["hardware"] == "8 x GPU; 1 x GPU", "that of the runs, not of the machine that collects them"
    shutil.rmtree(compared)
    with pytest.raises(SystemExit, match="holds neither"):
        collect(compared, study="core", student="gemma")


def test_points_of_a_sweep_become_files_that_share_their_reference(compared):
    for point in ("annealed", "anchor"):
        for seed in (42, 43):
            shutil.copytree(compared / f"seed-{seed}", compared / point / f"seed-{seed}")
    facts = json.loads((compared / "compare.json").read_text(encoding="utf-8"))
    (compared / "compare.json").unlink()
    runs = {f"{point}/seed-{seed}": {"status": "done"} for point in ("annealed", "anchor") for seed in (42, 43)}
    runs["anchor/seed-43"] = runs["dpo/seed-42"] = {"status": "failed", "reason": "No memory."}
    points = {name: {} for name in ("annealed", "anchor", "dpo", "ssb")}
    put(compared / "sweep.json", facts | {"points": points, "runs": runs, "seeds": ["42", "43", "44"]})
    found = collect(compared, study="variants", student="gemma")
    assert list(found) == ["annealed", "anchor", "dpo"], "what failed everywhere is a result, what never ran is none"
    assert found["anchor"]["failed"] == {"anchor": {"43": "No memory.", "44": "not finished"}}
    failed = found.pop("dpo")
    assert failed["failed"]["dpo"] == {"42": "No memory.", "43": "not finished", "44": "not finished"}
    assert failed["methods"] == {}
    assert trained_methods([failed | {"file": "dpo.json"}]) == []
    assert list(found["anchor"]["methods"]) == ["base", "m1", "sft_restart", "anchor"]
    assert found["annealed"]["methods"]["annealed"]["cost"]["seconds"] == 4.0
    files = [one | {"file": f"{part}.json"} for part, one in found.items()]
    seeds = {one.method: one.seeds for one in trained_methods(files)}
    assert seeds["sft_restart"] == seeds["annealed"] == ["42", "43"] and seeds["anchor"] == ["42"]


def test_a_run_that_a_cut_off_sweep_does_not_list_counts_if_its_answers_are_all_there(compared):
    for seed in (42, 43):
        shutil.copytree(compared / f"seed-{seed}", compared / "anchor" / f"seed-{seed}")
    facts = json.loads((compared / "compare.json").read_text(encoding="utf-8"))
    (compared / "compare.json").unlink()
    runs = {"anchor/seed-42": {"status": "done"}}
    (compared / "anchor/seed-44").mkdir()  # just begun
    put(compared / "sweep.json", facts | {"points": {"anchor": {}}, "runs": runs, "seeds": ["42", "43", "44"]})
    (found,) = collect(compared, study="variants", student="gemma").values()
    assert list(found["methods"]["anchor"]["seeds"]) == ["42", "43"]
    assert found["failed"] == {"anchor": {"44": "not finished"}}
    shutil.rmtree(compared / "anchor/seed-43/eval/baseline-sft_restart")  # what the point would be compared with
    (found,) = collect(compared, study="variants", student="gemma").values()
    assert list(found["methods"]["anchor"]["seeds"]) == ["42"] and list(found["failed"]["anchor"]) == ["43", "44"]
