"""Every block of code in README and docs does what the page says, and generated pages are up to date."""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from pages import PAGES, ROOT, Session, blocks

NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
WITH_KAFKA = [name for name in NAMES if any(block.how == "kafka" for block in blocks(ROOT / name))]


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    # Python blocks import what the page has written before, and only that.
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    yield Session(tmp_path, None)
    sys.modules.pop("app", None)


@pytest.mark.parametrize("name", NAMES)
def test_every_block_of_the_page_does_what_it_says(name: str, session: Session) -> None:
    for block in blocks(ROOT / name):
        if block.how != "kafka":
            session.follow(block)


@pytest.mark.parametrize("name", WITH_KAFKA)
def test_the_pages_commands_work_on_kafka(name: str, session: Session, kafka_bootstrap: str) -> None:
    session.kafka = kafka_bootstrap
    for block in blocks(ROOT / name):
        if block.how == "kafka" or (block.language == "python" and block.how):
            session.follow(block)


GENERATED = runpy.run_path(str(ROOT / "docs" / "generate.py"))["PAGES"]


@pytest.mark.parametrize("name", GENERATED)
def test_what_is_generated_is_up_to_date(name: str) -> None:
    assert (ROOT / "docs" / name).read_text("utf-8") == GENERATED[name](), "run 'make docs'"


def test_each_picture_is_shown_on_a_page() -> None:
    pictures = {name for name in GENERATED if name.endswith(".svg")}
    shown = {name for page in PAGES for name in re.findall(r"!\[[^]]+\]\(([^)]+)\)", page.read_text("utf-8"))}
    assert pictures <= shown


@pytest.mark.parametrize("name", NAMES)
def test_links_between_pages_lead_somewhere(name: str) -> None:
    page = ROOT / name
    links = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text("utf-8"))
    missing = [link for link in links if not (page.parent / link).exists()]
    assert not missing


@pytest.mark.parametrize("name", NAMES)
def test_no_line_of_prose_is_longer_than_a_screen(name: str) -> None:
    prose = re.sub(r"^```.*?^```$", "", (ROOT / name).read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    long = [line for line in prose.splitlines() if len(line) > 125 and not line.startswith("|")]
    assert not long
