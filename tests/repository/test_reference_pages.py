"""The generated pages of docs/reference are what --help and the docstrings say."""

import pytest
from scripts import reference_pages

import weakdriven
from weakdriven import eval as evaluation
from weakdriven.eval import sandbox


@pytest.mark.parametrize("file", reference_pages.PAGES)
def test_a_page_is_up_to_date(file):
    page = (reference_pages.FOLDER / file).read_text(encoding="utf-8")
    assert page == reference_pages.PAGES[file](), "run `python scripts/reference_pages.py`"


def test_every_public_name_is_on_the_page():
    named = {one.__name__ for objects in reference_pages.API.values() for one in objects}
    assert named == {*weakdriven.__all__, *evaluation.__all__, *sandbox.__all__, "Head"}
