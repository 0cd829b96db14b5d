"""Every link of the documentation leads somewhere."""

import re
from pathlib import Path

import pytest

from tests.docs import pages


@pytest.mark.parametrize("page", pages.pages(), ids=pages.name_of)
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    prose = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    links = re.findall(r"\[[^\]]*\]\(([^)\s]+)\)", prose)

    assert [link for link in links if not _leads_somewhere(page, link)] == []


def test_every_promise_of_the_readme_names_a_test_that_exists() -> None:
    readme = (pages.ROOT / "README.md").read_text("utf-8")
    promises = re.findall(
        r"^- \*\*.+?\[([a-z ]+)\]\((tests/\S+\.py)\)\.$", readme, re.MULTILINE | re.DOTALL
    )

    assert len(promises) == len(re.findall(r"\(tests/", readme)) > 0
    missing = [
        sentence
        for sentence, file in promises
        if f"def test_{sentence.replace(' ', '_')}(" not in (pages.ROOT / file).read_text("utf-8")
    ]
    assert missing == []


def test_every_page_is_reached_from_the_readme() -> None:
    reached: set[Path] = set()
    ahead = [pages.ROOT / "README.md"]
    while ahead:
        page = ahead.pop()
        if page not in reached and page.suffix == ".md":
            reached.add(page)
            links = re.findall(r"\]\(([^)\s#]+)", page.read_text("utf-8"))
            ahead += [(page.parent / link).resolve() for link in links if "://" not in link]

    assert sorted(set(pages.pages()) - reached) == []


def _leads_somewhere(page: Path, link: str) -> bool:
    if link.startswith("https://"):
        return True
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    return target.exists() and (not anchor or anchor in map(_anchor, pages.headings(target)))


def _anchor(heading: str) -> str:
    plain = re.sub(r"[`*]|\[|\]\([^)]*\)", "", heading.lower())
    return re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
