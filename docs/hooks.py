"""Pages and pictures of the site that do not lie in docs: the glossary, which the program prints, and pictures beside
what makes them, by the links that GitHub follows."""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel

from scaling_algebra.commands.list import glossary_document
from scaling_algebra.documents import render

OUTSIDE = re.compile(r"\]\(((?:\.\./)+[\w./-]+\.(?:png|svg))\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the glossary, and every picture that a page links to outside of docs."""
    root = Path(config.docs_dir)
    glossary = f"# Glossary\n\n{render(glossary_document(), 'markdown')}\n"
    files.append(File.generated(config, "glossary.md", content=glossary))
    for page in list(files.documentation_pages()):
        if page.abs_src_path is None:
            continue
        here = Path(page.abs_src_path)
        for link in OUTSIDE.findall(here.read_text(encoding="utf-8")):
            picture = (here.parent / link).resolve()
            name = picture.relative_to(root.parent).as_posix()
            if files.get_file_from_path(f"../{name}") is None:
                added = File.generated(config, f"../{name}", abs_src_path=str(picture))
                added.dest_uri, added.inclusion = f"assets/{name}", InclusionLevel.INCLUDED
                files.append(added)
    return files
