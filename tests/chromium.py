"""The Chromium in which pages are tested, and the mark of tests that need it."""

import shutil

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None,
    reason="a page is tested in a real browser, and none is installed; on Debian: apt-get install chromium",
)
