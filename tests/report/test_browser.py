"""The pages in a real Chromium, opened as files with a double click would: drawn, silent, alone, and easy to use."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from chromium import CHROMIUM, needs_chromium
from report_runs import EVIL, finish
from run_files import put
from weakdriven.diagnose.diagnose import diagnose_run
from weakdriven.report import write_report
from weakdriven.report.compare.page import write_compare
from weakdriven.runs.directory import Progress

pytestmark = [needs_chromium, pytest.mark.slow]
SCREENSHOTS = os.environ.get("WEAKDRIVEN_SCREENSHOTS")
"""A folder for pictures of the pages; those of docs/pictures are of the demo, diagnosed and named by the next one."""
REPORT = os.environ.get("WEAKDRIVEN_REPORT")
"""A report to look at instead of a small one made here."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def report(request, tmp_path_factory) -> Path:
    if REPORT:
        return Path(REPORT).resolve()
    two_round_run = request.getfixturevalue("two_round_run")
    root = Path(shutil.copytree(two_round_run[0], tmp_path_factory.mktemp("page") / "run"))
    diagnose_run(root, Progress(), examples=16)
    return write_report(root)


class Opened:
    """A page, and everything that it complained of or asked for."""

    def __init__(self, browser: Browser, path: Path, *, width: int = 1440, scheme: Any = "light") -> None:
        self.page: Page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda said: self.complaints.append(said.text) if said.type != "log" else None)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri())
        self.page.wait_for_function("document.documentElement.dataset.figures === 'done'")

    def keep(self, name: str) -> None:
        if SCREENSHOTS:
            self.page.screenshot(path=Path(SCREENSHOTS) / f"{name}.png")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
def test_every_figure_is_drawn_without_a_complaint_a_request_or_sideways_scrolling(browser, report, width, scheme):
    opened = Opened(browser, report, width=width, scheme=scheme)
    opened.keep(f"report-{width}-{scheme}")
    states = opened.page.eval_on_selector_all(
        "[data-figure]",
        "all => all.map(one => [one.dataset.state, one.querySelectorAll('svg .mark-group, svg path').length])",
    )
    assert len(states) > 15 and all(state == "drawn" and marks > 2 for state, marks in states)
    assert opened.complaints == []
    assert opened.requests == [report.as_uri()]
    assert opened.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
    opened.page.close()


def test_the_verdict_comes_first(browser, report):
    page = Opened(browser, report).page
    assert page.locator(".verdict").bounding_box()["y"] < 300
    assert "SFT (" in page.inner_text(".verdict")
    page.close()


def test_a_point_under_the_pointer_tells_what_it_is(browser, report):
    opened = Opened(browser, report)
    page = opened.page
    place = page.locator('[data-figure="entropy-round-1"]')
    place.scroll_into_view_if_needed()
    place.locator("svg path[aria-roledescription=point]").first.hover(force=True)
    tip = page.wait_for_selector("#vg-tooltip-element.visible")
    assert tip is not None and "question" in tip.inner_text() and "arithmetic-train" in tip.inner_text()
    opened.keep("hover")
    page.close()


def test_a_token_under_the_pointer_names_its_hard_negatives(browser, report):
    opened = Opened(browser, report)
    page = opened.page
    page.locator("#token-view").scroll_into_view_if_needed()
    tokens = page.locator(".tokens .token")
    assert tokens.count() > 10
    tokens.nth(3).hover()
    assert "Token 4:" in page.inner_text(".panel")
    assert page.locator(".panel thead th").all_inner_texts() == ["token", "weak", "strong", "mixed", "gradient"]
    cells = page.locator(".panel tbody tr").nth(1).locator("td").all_inner_texts()
    assert len(cells) == 5 and cells[1].endswith("%") and float(cells[4]) > 0
    opened.keep("tokens")
    page.locator(".tokens").focus()
    page.keyboard.press("ArrowRight")
    assert "Token 5:" in page.inner_text(".panel")
    page.close()


def test_examples_are_stepped_through_and_lists_are_changed(browser, report):
    page = Opened(browser, report).page
    first, text = page.inner_text(".counter"), page.inner_text(".tokens")
    assert first.startswith("1 of ")
    page.get_by_role("button", name="next").click()
    assert page.inner_text(".counter").startswith("2 of ") and page.inner_text(".tokens") != text
    page.get_by_role("button", name="previous").click()
    assert page.inner_text(".counter") == first
    page.get_by_role("button", name="at random").click()
    assert page.get_by_role("button", name="at random").get_attribute("aria-pressed") == "true"
    before = page.locator(".token").nth(0).get_attribute("style")
    page.locator("#token-view select").select_option("unsure")
    assert page.locator(".token").nth(0).get_attribute("style") != before
    page.close()


def test_light_and_dark_differ_and_the_button_changes_them(browser, report):
    page = Opened(browser, report, scheme="dark").page
    ink = "getComputedStyle(document.querySelector('[data-figure] svg text')).fill"
    colours = f"[getComputedStyle(document.body).backgroundColor, {ink}]"
    dark = page.evaluate(colours)
    page.click("#theme")
    light = page.evaluate(colours)
    assert dark[0] != light[0] and dark[1] != light[1]
    page.reload()
    page.wait_for_function("document.documentElement.dataset.figures === 'done'")
    assert page.evaluate(colours) == light
    page.close()


def test_a_print_is_light_and_holds_every_figure(browser, report, tmp_path):
    page = Opened(browser, report, scheme="dark").page
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--ink').trim()") == "#1d2329"
    assert page.locator("#theme").is_hidden() and page.locator("[data-figure] svg").count() > 15
    assert len(page.pdf()) > 50_000
    page.close()


def test_text_of_models_never_becomes_markup_or_script(browser, tmp_path):
    evil = "<img src=x onerror=alert(1)>" + EVIL
    finish(tmp_path, recipe=evil)
    rows = [{"id": f"train-{i}", "prompt": evil, "completion": evil, "gold": "4", "meta": {}} for i in range(60)]
    put(tmp_path / "data/examples.jsonl", rows)
    opened = Opened(browser, write_report(tmp_path))
    place = opened.page.locator('[data-figure="entropy-round-1"]')
    place.scroll_into_view_if_needed()
    place.locator("svg path[aria-roledescription=point]").first.hover(force=True)
    tip = opened.page.wait_for_selector("#vg-tooltip-element.visible")
    assert tip is not None and "<img src=x" in tip.inner_text()
    assert opened.page.locator("img").count() == 0 and opened.complaints == []
    opened.page.close()


def test_the_page_of_several_runs_is_drawn_on_a_phone_too(browser, tmp_path, report):
    page = write_compare([report.parent], tmp_path / "compare.html")
    for width in (390, 1440):
        opened = Opened(browser, page, width=width)
        opened.keep(f"compare-{width}")
        states = opened.page.eval_on_selector_all("[data-figure]", "all => all.map(one => one.dataset.state)")
        assert states == ["drawn"] * 3 and opened.complaints == [] and opened.requests == [page.as_uri()]
        wide = opened.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0
        opened.page.close()


def test_an_empty_run_opens_too(browser, tmp_path):
    put(tmp_path / "run.json", {"recipe": "demo"})
    opened = Opened(browser, write_report(tmp_path))
    assert opened.complaints == [] and "Nothing has been evaluated yet" in opened.page.inner_text(".verdict")
    opened.page.close()
