"""Links and file names in the documentation refer to existing files and sections."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/**/*.md")])
FOLDERS = (
    "slurm_energy",
    "slurm_energy_lab",
    "tests",
    "benchmarks",
    "docs",
    "spank",
    "plugins",
    "prolog_epilog",
    "packaging",
)
SOURCES = [f"/{file.relative_to(ROOT)}" for folder in FOLDERS for file in (ROOT / folder).rglob("*.*")]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def prose(page: Path) -> str:
    """Return the page without code blocks."""
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Return the anchors (link targets) that GitLab and GitHub make of a Markdown page's headings."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in headings}


def broken_links(page: Path) -> Iterator[str]:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        linked = (page.parent / file).resolve() if file else page
        if not linked.exists() or (anchor and linked.suffix == ".md" and anchor not in anchors(linked)):
            yield target


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_have_targets(page: Path) -> None:
    assert list(broken_links(page)) == []


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=name)
def test_source_files_that_a_page_names_exist(page: Path) -> None:
    paths = set(re.findall(r"`([\w.-]+(?:/[\w.-]+)+\.(?:py|c|h|lua|md|sh))`", prose(page)))
    missing = [path for path in sorted(paths) if not any(file.endswith(f"/{path}") for file in SOURCES)]
    assert missing == []


def test_the_changelog_has_no_entry_twice() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    entries = re.split(r"^(?:- |#+ )", text, flags=re.MULTILINE)
    assert sorted({entry for entry in entries if entries.count(entry) > 1}) == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_the_tables_of_budgets_have_double_brackets(page: Path) -> None:
    assert "`[budgets]`" not in page.read_text(encoding="utf-8"), "energy.toml would be refused"
