"""Looks at a built site as a browser without a network would: python docs/links.py SITE.

Every link within the site must lead to a file of it, and to an anchor that is there; no page may
load a script, a style, a font or a picture from elsewhere.
"""

import argparse
import re
import sys
from collections.abc import Callable
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {("script", "src"), ("img", "src"), ("link", "href"), ("source", "src"), ("iframe", "src")}
NOT_LOADED = {"canonical", "search", "index", "next", "prev", "author"}
ELSEWHERE_IN_CSS = re.compile(r"(?:url\(\s*['\"]?|@import\s+['\"])(?:https?:)?//")


class Page(HTMLParser):
    """What a page links to, what it loads, and the anchors in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """One element."""
        given = {name: value or "" for name, value in attrs}
        self.anchors.update(given[name] for name in ("id", "name") if name in given)
        relations = set(given.get("rel", "").split())
        for name in ("href", "src"):
            if name not in given:
                continue
            is_loaded = (tag, name) in LOADED and not relations & NOT_LOADED
            (self.loads if is_loaded else self.links).append(given[name])


def is_elsewhere(url: str) -> bool:
    """Whether a URL names another host."""
    return bool(urlsplit(url).netloc)


def faults_of(path: Path, page_of: Callable[[Path], Page]) -> list[str]:
    """What is wrong with one page, a line each."""
    page = page_of(path)
    faults = [f"loads {url}" for url in page.loads if is_elsewhere(url)]
    for url in page.links + page.loads:
        parts = urlsplit(url)
        if parts.scheme or parts.netloc:
            continue
        target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
        if not target.is_file():
            faults.append(f"links to {url}: no such file")
        elif parts.fragment and target.suffix == ".html":
            anchors = page_of(target).anchors
            if unquote(parts.fragment) not in anchors:
                faults.append(f"links to {url}: no such anchor")
    return faults


def check(site: Path) -> list[str]:
    """What is wrong with a site, a line each; none: it works without a network."""
    page_of = cache(lambda path: Page(path.read_text(encoding="utf-8")))
    pages = sorted(site.rglob("*.html"))
    styles = [
        path
        for path in sorted(site.rglob("*.css"))
        if ELSEWHERE_IN_CSS.search(path.read_text(encoding="utf-8"))
    ]
    return [
        *(f"{path.relative_to(site)}: {f}" for path in pages for f in faults_of(path, page_of)),
        *(f"{path.relative_to(site)}: loads from another host" for path in styles),
        *([] if pages else [f"{site}: expected pages, got none"]),
    ]


def main() -> None:
    """Print every fault; exit 1 where there is one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("site", type=Path)
    faults = check(parser.parse_args().site.resolve())
    sys.exit("\n".join(faults) if faults else 0)


if __name__ == "__main__":
    main()
