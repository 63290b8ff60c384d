"""Look at the built site: every public name has its place, and nothing comes from the internet.

python tools/site/check.py site
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from public import public_names

# What a browser fetches by itself: scripts, styles, fonts, pictures. Links may lead anywhere.
FETCHED = re.compile(
    r"""<(?:script|img|iframe|source|embed)[^>]*\ssrc=["']?(?:https?:)?//"""
    r"""|<link[^>]*rel=["']?(?:stylesheet|preconnect|preload|icon)[^>]*href=["']?(?:https?:)?//"""
    r"""|@import\s+["'](?:https?:)?//|url\(["']?(?:https?:)?//"""
)


def fetched(site: Path) -> Iterator[str]:
    """Files that make a browser ask another host."""
    for path in sorted(site.rglob("*")):
        if path.suffix in {".html", ".css", ".svg"}:
            for match in FETCHED.finditer(path.read_text(encoding="utf-8")):
                yield f"{path.relative_to(site)} fetches from elsewhere: {match[0]}"


def without_place(site: Path) -> Iterator[str]:
    """Public names that no page of the reference has a heading for."""
    pages = (site / "reference").glob("*.html")
    text = " ".join(page.read_text(encoding="utf-8") for page in pages)
    anchors = set(re.findall(r'id="(proxbit[\w.]*)"', text))
    missing = [name for name, paths in public_names().items() if not anchors & paths]
    if missing:
        yield f"not in the reference (name them on a page of docs/reference): {', '.join(missing)}"


def main(site: Path) -> int:
    """Print what is wrong; 1 if anything is."""
    wrong = [*fetched(site), *without_place(site)]
    print("\n".join(wrong) or f"{site}: every public name has its place, nothing is fetched")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
