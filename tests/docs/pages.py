"""The pages of the guide, cut into fenced blocks: what the tests of the documentation read."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


@dataclass(frozen=True)
class FencedBlock:
    """A fenced block: its page, what language its fence names, its text, and the file that its title names."""

    page: Path
    language: str
    text: str
    file: str = ""

    def __str__(self) -> str:
        """The page and what the block begins with: a name that stays when lines above it come and go."""
        first = next(iter(self.text.split("\n")), "")[:90]
        return f"{self.page.relative_to(ROOT).as_posix()}: {first}"

    def commands(self) -> list[str]:
        """Every ``scalecalc ...`` of the block, prompts and continued lines put right."""
        joined = self.text.replace("\\\n", " ")
        return re.findall(r"^(?:\$ )?(?:torchrun .*)?(scalecalc .*)$", joined, re.M)

    def examples(self) -> list[tuple[str, list[str]]]:
        """Every ``$ ...`` with the lines shown below it."""
        found = re.findall(r"^\$ (.*?)\n(.*?)(?=^\$ |\Z)", self.text.replace("\\\n", " "), re.S | re.M)
        return [(command, shown.rstrip().splitlines()) for command, shown in found]


def blocks(*languages: str) -> list[FencedBlock]:
    """All blocks of all pages whose fence names one of these languages."""
    return [b for page in PAGES for b in cut(page) if b.language in languages]


def sessions() -> list[FencedBlock]:
    """The ``pycon`` blocks of each page as one: names of one are there in the next."""
    texts = {page: [b.text for b in cut(page) if b.language == "pycon"] for page in PAGES}
    return [FencedBlock(page, "python", "\n".join(each)) for page, each in texts.items() if each]


def cut(page: Path) -> list[FencedBlock]:
    """The fenced blocks of one page."""
    text = page.read_text(encoding="utf-8")
    fences = re.finditer(r'^```(\w*)(?: title="(.*?)")?[^\n]*\n(.*?)^```$', text, re.S | re.M)
    return [FencedBlock(page, m[1], m[3], m[2] or "") for m in fences]


def write_files(page: Path, folder: Path) -> None:
    """The files that a page shows."""
    for block in cut(page):
        if block.file:
            (folder / block.file).write_text(block.text, encoding="utf-8")
