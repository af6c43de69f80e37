"""Links and paths of the documentation lead somewhere."""

import importlib
import inspect
import re

import pytest

from .pages import PAGES, ROOT

TOP = ("scaling_algebra", "tables", "verify", "docs", "tests", "benchmarks")
CODE = r"```.*?^```"


def prose(page):
    return re.sub(CODE, "", page.read_text(encoding="utf-8"), flags=re.S | re.M)


def anchors(page):
    """Heading anchors as GitHub and mkdocs make them."""
    heads = re.findall(r"^#+ +(.+)$", prose(page), re.M)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", h.replace("`", "")).strip().lower()) for h in heads}


@pytest.mark.parametrize(
    "page", [*PAGES, ROOT / "CHANGELOG.md", ROOT / "tests" / "README.md"], ids=lambda p: p.relative_to(ROOT).as_posix()
)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        found = (page.parent / file).resolve() if file else page
        assert found.exists(), target
        assert not anchor or anchor in anchors(found), target


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_files_and_folders_that_are_named_exist(page):
    for name in re.findall(rf"`((?:{'|'.join(TOP)})/[\w./*-]*)`", prose(page)):
        assert list(ROOT.glob(name.rstrip("/"))), name


def test_modules_that_docstrings_name_exist():
    ours = [p for top in TOP for p in (ROOT / top).rglob("*") if p.is_file()]
    paths = ["/" + p.relative_to(ROOT).as_posix() for p in ours]
    for module in (p for p in ours if p.suffix == ".py"):
        for name in re.findall(r"``([\w/]+\.(?:py|toml|j2))``", module.read_text(encoding="utf-8")):
            assert any(path.endswith(f"/{name}") for path in paths), (module, name)


def test_every_page_is_in_the_menu():
    menu = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for page in (ROOT / "docs").rglob("*.md"):
        assert page.relative_to(ROOT / "docs").as_posix() in menu, page


def documented():
    page = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    return re.findall(r"^::: ([\w.]+)$", page, re.M)


@pytest.mark.parametrize("name", documented())
def test_the_reference_names_what_exists_and_its_arguments(name):
    """The guide is built in strict mode by `make test` alone; what moved is told here, too."""
    module, _, name = name.rpartition(".")
    found = getattr(importlib.import_module(module), name)
    assert found.__module__ == module, found.__module__
    args = re.search(r"^Args:\n(.*?)(?:\n\n|\Z)", inspect.getdoc(found) or "", re.S | re.M)
    if args and inspect.isfunction(found):
        told = {line.split(":")[0].lstrip("*") for line in re.findall(r"^    (\S.*)$", args[1], re.M)}
        assert told <= set(inspect.signature(found).parameters)
