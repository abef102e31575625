"""Check a built site: no page asks another host for anything, and the search index has every page."""

import html.parser
import json
import pathlib
import re
import sys

LOADS = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src"}


class Page(html.parser.HTMLParser):
    """Page collects what a browser would load by itself."""

    def __init__(self):
        super().__init__()
        self.loads = []

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        if tag in LOADS:
            self.loads.append(attrs.get(LOADS[tag]) or "")
        if tag == "link" and re.search("stylesheet|icon|preload|preconnect", attrs.get("rel") or ""):
            self.loads.append(attrs.get("href") or "")


def main(folder):
    pages = [p for p in pathlib.Path(folder).rglob("*.html") if p.name != "404.html"]
    wrong = []
    for path in pages:
        page = Page()
        page.feed(path.read_text(encoding="utf-8"))
        wrong += [f"{path}: loads {url}" for url in page.loads if re.match(r"(https?:)?//", url)]
    index = (pathlib.Path(folder) / "search" / "search_index.json").read_text(encoding="utf-8")
    found = {entry["location"].split("#")[0] for entry in json.loads(index)["docs"]}
    wrong += [f"{p}: not in the search index" for p in pages if p.relative_to(folder).as_posix() not in found]
    if len(pages) < 30:
        wrong.append(f"only {len(pages)} pages")
    print("\n".join(wrong) or f"{len(pages)} pages, none loads anything from elsewhere")
    sys.exit(1 if wrong else 0)


main(sys.argv[1])
