"""Pictures that lie outside docs, beside what makes them, are shown on the site by the links that GitHub follows."""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel

OUTSIDE = re.compile(r"\]\(((?:\.\./)+[\w./-]+\.(?:png|svg))\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds every picture that a page links to outside of docs."""
    root = Path(config.docs_dir)
    for page in list(files.documentation_pages()):
        assert page.abs_src_path is not None
        here = Path(page.abs_src_path)
        for link in OUTSIDE.findall(here.read_text(encoding="utf-8")):
            picture = (here.parent / link).resolve()
            name = picture.relative_to(root.parent).as_posix()
            if files.get_file_from_path(f"../{name}") is None:
                added = File.generated(config, f"../{name}", abs_src_path=str(picture))
                added.dest_uri, added.inclusion = f"assets/{name}", InclusionLevel.INCLUDED
                files.append(added)
    return files
