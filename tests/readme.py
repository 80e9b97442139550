"""README.md is nbs/index.ipynb as Markdown: prose as it stands, code in fences, stored outputs
below it.

As a program it writes README.md, and the tables of rooms and tests (`rooms.py`).
"""

import json
from pathlib import Path

import rooms

ROOT = Path(__file__).parent.parent


def _output_text(output: dict) -> str:
    data = output.get("data", {})
    return "".join(data.get("text/markdown") or data.get("text/plain") or output.get("text", ""))


def _cell_text(cell: dict) -> str:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return source
    lines = [line for line in source.splitlines() if not line.startswith("#|")]
    parts = ["```python\n" + "\n".join(lines).strip() + "\n```"]
    for output in cell["outputs"]:
        text = _output_text(output).rstrip()
        markdown = "text/markdown" in output.get("data", {})
        parts.append(text if markdown else "```\n" + text + "\n```")
    return "\n\n".join(parts)


def readme_text() -> str:
    """The README as the index notebook says it."""
    cells = json.loads((ROOT / "nbs/index.ipynb").read_text())["cells"]
    shown = [
        c for c in cells if "".join(c["source"]).strip() and "#| hide" not in "".join(c["source"])
    ]
    note = "<!-- Written from nbs/index.ipynb by `make notebooks`; edit the notebook. -->\n\n"
    return note + "\n\n".join(_cell_text(c) for c in shown) + "\n"


if __name__ == "__main__":
    (ROOT / "README.md").write_text(readme_text())
    rooms.write()
