"""Hooks of the site: the README as its home page, links to sources, and the list of decisions."""

import pathlib
import re

from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCES = "https://github.com/kvpilot/kvpilot/blob/main/"
LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")
FENCE = re.compile(r"(^```.*?^```$)", re.M | re.S)


def on_config(config):
    """List the decisions: a new one needs no entry in mkdocs.yml."""
    entries = []
    for path in sorted((ROOT / "docs" / "adr").glob("*.md")):
        title = path.read_text(encoding="utf-8").splitlines()[0].lstrip("# ")
        entries.append({title: f"adr/{path.name}"})
    config.nav[-1] = {"Decisions": entries}
    return config


def on_files(files, config):
    """Make the README the home page. Its links begin at the root of the repository."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    files.append(File.generated(config, "index.md", content=outside_fences(text, from_root)))
    return files


def on_page_markdown(markdown, page, config, files):
    """Lead links that leave docs/ to the sources."""
    folder = (ROOT / "docs" / page.file.src_uri).parent

    def lead(target):
        path = (folder / target).resolve()
        if path.is_relative_to(ROOT / "docs") and path.is_file() or not path.exists():
            return target
        return SOURCES + path.relative_to(ROOT).as_posix()

    return outside_fences(markdown, lead)


def from_root(target):
    """Rewrite a link of the README."""
    return target.removeprefix("docs/") if target.startswith("docs/") else "../" + target


def outside_fences(text, lead):
    """Apply lead to the targets of relative links, but not to those in fenced code."""

    def one(m):
        return m[0] if "://" in m[2] or m[2].startswith("mailto:") else m[1] + lead(m[2]) + m[3]

    parts = FENCE.split(text)
    return "".join(part if part.startswith("```") else LINK.sub(one, part) for part in parts)
